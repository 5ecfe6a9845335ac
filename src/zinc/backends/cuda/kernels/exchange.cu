// All-reduce and transfer of rows between GPUs: each receiver gets the sum of the senders' rows.
//
// Each sender writes its rows into the mailbox of every receiver. Each participant sets a flag on
// all others and waits for their flags, so an exchange is also a barrier between them. Block i of a
// GPU waits only for block i of its peers. Rows are added in the order of the GPUs, so all receivers
// compute the same bits.
//
//     rows in a mailbox   [senders][mail_bytes], starting at byte mail_at
//     flags of a GPU      [n_gpus][EXCHANGE_BLOCKS]; rounds have the same layout
//
// Mailboxes are double-buffered: exchanges of the same participants alternate between two parts
// (zinc.gpu.peers). Before a GPU overwrites a part, it has waited for the flags of the exchange in
// between, which its peers set after they had read that part.

#include "arguments.h"

using Arguments = ExchangeArguments;

#include "floats.cuh"
#include "peers.cuh"
#include "step.cuh"

#if VECTORS
#define WIDTH 4 // columns of an item
typedef float4 Item;
#else
#define WIDTH 1
typedef float Item;
#endif

/// Returns item i of rows of `n` items.
DEVICE Item* itemAt(uint8_t* rows, uint stride, uint n, uint i)
{
    return (Item*)rowAt(rows, i / n, stride) + i % n;
}

/// Returns the items that a sender writes into the mailbox of a GPU.
DEVICE Item* mailOf(const Arguments& args, uint gpu, uint sender)
{
    const uint before = __popc(args.senders & ((1u << sender) - 1));
    return (Item*)(args.peers->mailboxes[gpu] + args.mail_at + before * args.mail_bytes);
}

KERNEL(exchange, Arguments)
{
    const PeerTable* peers = args.peers;
    const uint thread = threadIdx.x, block = blockIdx.x;
    const uint n_gpus = peers->n_gpus, self = peers->gpu, n = args.cols / WIDTH;
    const uint items = rowsOf(args.step, args.dim) * n, each = (items + gridDim.x - 1) / gridDim.x;
    const uint begin = min(block * each, items), end = min(begin + each, items);

    if (args.senders >> self & 1)
        for (uint i = begin + thread; i < end; i += THREADS)
        {
            const Item v = *itemAt(args.sent, args.sent_stride, n, i);
            for (uint gpu = 0; gpu < n_gpus; gpu++)
                if (gpu != self && args.receivers >> gpu & 1) mailOf(args, gpu, self)[i] = v;
        }
    __syncthreads();
    if (thread < n_gpus && thread != self && args.participants >> thread & 1)
    {
        uint* completed = peers->rounds + thread * EXCHANGE_BLOCKS + block;
        const uint round = *completed + 1;
        setFlag(peers->flags[thread] + self * EXCHANGE_BLOCKS + block, round);
        awaitFlag(peers->flags[self] + thread * EXCHANGE_BLOCKS + block, round);
        *completed = round;
    }
    __syncthreads();
    if (args.receivers >> self & 1)
        for (uint i = begin + thread; i < end; i += THREADS)
        {
            Item sum = Item(0);
            for (uint gpu = 0; gpu < n_gpus; gpu++)
            {
                if (gpu == self && args.senders >> gpu & 1)
                    sum += *itemAt(args.sent, args.sent_stride, n, i);
                else if (args.senders >> gpu & 1)
                    sum += mailOf(args, self, gpu)[i];
            }
            *itemAt(args.received, args.received_stride, n, i) = sum;
        }
}
