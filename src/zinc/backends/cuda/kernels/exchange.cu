// Exchange of rows between cards: the sum of the rows of all senders, on all receivers.
//
// Each card writes its rows into a mailbox on every receiver, sets a flag there, and waits for the
// flags of all cards. So an exchange is a barrier too. Block i of a card waits for the blocks i of
// the others only. Sums are made in the order of the cards, so all receivers have the same bits.
//
//     mailbox of a card   [2 slots][cards][slot_bytes]
//     flags of a card     [cards][EXCHANGE_BLOCKS]
//
// Consecutive exchanges use different slots: a card that writes to a slot has seen the flags of the
// exchange before, which the others set after they had read the slot.

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

/// Returns the items that a sender writes into the mailbox of a card.
DEVICE Item* mailOf(const PeerTable* peers, uint card, uint slot, uint sender)
{
    return (Item*)(peers->mailboxes[card] + (slot * peers->cards + sender) * peers->slot_bytes);
}

KERNEL(exchange, Arguments)
{
    const PeerTable* peers = args.peers;
    const uint thread = threadIdx.x, block = blockIdx.x;
    const uint cards = peers->cards, self = peers->card, n = args.cols / WIDTH;
    const uint items = rowsOf(args.step, args.dim) * n, each = (items + gridDim.x - 1) / gridDim.x;
    const uint begin = min(block * each, items), end = min(begin + each, items);
    const uint round = peers->rounds[block] + 1;

    if (args.senders >> self & 1)
        for (uint i = begin + thread; i < end; i += THREADS)
        {
            const Item v = *itemAt(args.sent, args.sent_stride, n, i);
            for (uint card = 0; card < cards; card++)
                if (card != self && args.receivers >> card & 1)
                    mailOf(peers, card, args.slot, self)[i] = v;
        }
    __syncthreads();
    if (thread < cards && thread != self)
    {
        setFlag(peers->flags[thread] + self * EXCHANGE_BLOCKS + block, round);
        awaitFlag(peers->flags[self] + thread * EXCHANGE_BLOCKS + block, round);
    }
    __syncthreads();
    if (args.receivers >> self & 1)
        for (uint i = begin + thread; i < end; i += THREADS)
        {
            Item sum = Item(0);
            for (uint card = 0; card < cards; card++)
            {
                if (card == self && args.senders >> card & 1)
                    sum += *itemAt(args.sent, args.sent_stride, n, i);
                else if (args.senders >> card & 1)
                    sum += mailOf(peers, self, args.slot, card)[i];
            }
            *itemAt(args.received, args.received_stride, n, i) = sum;
        }
    if (thread == 0) peers->rounds[block] = round;
}
