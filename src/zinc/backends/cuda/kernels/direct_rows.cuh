// Few rows of x of a tensor core GEMM: each warp converts rows of 8-bit blocks in registers. Lane c
// of a quad converts whole units, as it does with weights (half_weights.cuh).

SHARED RowFactor rowFactors[BATCH];

DEVICE float inverseOf(uint i) { return rowFactors[i].inverse; }

#if EXPERTS
DEVICE uint8_t* xAt(ARGS, uint i, uint plane) { return rowAt(args, i); }
#else
DEVICE uint8_t* xAt(ARGS, uint i, uint plane) { return rowAt(args, i, plane); }
#endif

/// A unit of a row of x: signed bytes, and their scale as a pair.
struct HalfActivations
{
    uint4 a, b;
    uint d;

    /// Loads a unit; past the last unit its scale is 0.
    MEMBER void load(uint8_t* row, uint cols, uint unit, float factor)
    {
        const uint n = (cols + 31) / 32, at = min(unit, n - 1);
        a = loadAligned<16>((uint4*)row + 2 * at);
        b = loadAligned<16>((uint4*)row + 2 * at + 1);
        d = twice(unit < n ? scalesOf(row, cols)[at].x * factor : 0.0f);
    }

    MEMBER void pairs(uint word, uint& low, uint& high) const
    {
        halvesOfSigned(word < 4 ? a[word & 3] : b[word & 3], low, high);
        low = multiplyHalves(low, d);
        high = multiplyHalves(high, d);
    }
};

/// The rows of x that a lane converts.
struct LaneRows
{
    uint8_t* rows[X_TILES];
    float factors[X_TILES];

    MEMBER LaneRows(ARGS, const TileOrigin& origin)
    {
        UNROLL for (uint j = 0; j < X_TILES; j++)
        {
            const uint i = 8 * j + origin.lane / 4;
            rows[j] = xAt(args, min(origin.at + i, origin.end - 1), origin.plane);
            factors[j] = rowFactors[i].factor;
        }
    }
};

/// A lane's units of a slab of x.
struct ActivationSlab
{
    HalfActivations units[X_TILES];

    MEMBER void load(ARGS, const LaneRows& x, const TileOrigin& origin, uint slab)
    {
        UNROLL for (uint j = 0; j < X_TILES; j++)
            units[j].load(x.rows[j], COLUMNS, 4 * slab + origin.lane % 4, x.factors[j]);
    }
};

DEVICE void multiplySlab(const WeightSlab& weights, const ActivationSlab& x, Sums& sums)
{
    UNROLL for (uint step = 0; step < STEPS; step++)
    {
        uint low[X_TILES], high[X_TILES];
        UNROLL for (uint j = 0; j < X_TILES; j++) x.units[j].pairs(step, low[j], high[j]);
        UNROLL for (uint t = 0; t < WEIGHTS * ROW_TILES; t++)
        {
            uint a[4];
            weights.fragment(t, step, a);
            UNROLL for (uint j = 0; j < X_TILES; j++)
                multiplyTiles(sums.d[t][j], a, low[j], high[j]);
        }
    }
}

/// Computes the factors of the tile's rows.
DEVICE void findFactors(ARGS, const TileOrigin& origin, uint thread)
{
    for (uint i = thread / SUBGROUP; i < BATCH; i += WARPS)
    {
        uint8_t* row = xAt(args, min(origin.at + i, origin.end - 1), origin.plane);
        RowFactor factor = factorOf(row, COLUMNS, origin.lane);
        if (origin.lane == 0) rowFactors[i] = factor;
    }
    __syncthreads();
}

DEVICE void accumulate(
    const TileArguments& tile, const TileOrigin& origin, Sums& sums, uint thread)
{
    const Arguments& args = tile.product;
    const uint slabs = origin.last_slab, first = origin.slab + origin.part;
    StoredSlab weights[DEEP];
    ActivationSlab x[DEEP];
    UNROLL for (uint p = 0; p < DEEP; p++)
        weights[p].load(args, origin, min(first + p * KSPLIT, slabs - 1));
#if !EXPERTS // the experts that are needed are known only after the wait
    waitForInputs();
#endif
    findFactors(args, origin, thread);
    const LaneRows rows(args, origin);
    UNROLL for (uint p = 0; p < DEEP; p++)
        x[p].load(args, rows, origin, min(first + p * KSPLIT, slabs - 1));
    for (uint begin = first; begin < slabs; begin += DEEP * KSPLIT)
        UNROLL for (uint p = 0; p < DEEP; p++)
        {
            const uint slab = begin + p * KSPLIT, ahead = slab + DEEP * KSPLIT;
            if (slab >= slabs) break;
            const WeightSlab current(weights[p], slab, origin.lane);
            const ActivationSlab current_x = x[p];
            if (ahead < slabs)
            {
                weights[p].load(args, origin, ahead);
                x[p].load(args, rows, origin, ahead);
            }
            multiplySlab(current, current_x, sums);
        }
}
