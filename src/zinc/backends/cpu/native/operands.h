// The index of each operand among the inputs of its op.
//
// Generated from the op registry (zinc/ops): do not edit. After a change to an op's operands, run
//   python -m zinc.ops.header > src/zinc/backends/cpu/native/operands.h
#pragma once

#include <cstddef>

namespace zinc::operands {

struct kv_store {
    enum : size_t { k, v, cache, n_inputs };
};

struct attention {
    enum : size_t { q, cache, sinks, slopes, keys, n_inputs };
};

struct embed {
    enum : size_t { table, n_inputs };
};

struct glu {
    enum : size_t { gate, up, n_inputs };
};

struct add {
    enum : size_t { a, b, n_inputs };
};

struct columns {
    enum : size_t { x, n_inputs };
};

struct scale {
    enum : size_t { x, n_inputs };
};

struct softcap {
    enum : size_t { x, n_inputs };
};

struct select_rows {
    enum : size_t { x, n_inputs };
};

struct quantize {
    enum : size_t { x, n_inputs };
};

struct causal_conv {
    enum : size_t { x, weight, bias, state, n_inputs };
};

struct head_linear {
    enum : size_t { x, weight, n_inputs };
};

struct concat_heads {
    enum : size_t { a, b, n_inputs };
};

struct gate {
    enum : size_t { x, g, n_inputs };
};

struct linear {
    enum : size_t { x };
    static constexpr size_t weight(size_t part) { return 1 + 3 * part; }
    static constexpr size_t bias(size_t part) { return 2 + 3 * part; }
    static constexpr size_t residual(size_t part) { return 3 + 3 * part; }
    static constexpr size_t n_inputs(size_t n_parts) { return 1 + 3 * n_parts; }
};

struct linear_glu {
    enum : size_t { x, gate, up, gate_bias, up_bias, n_inputs };
};

struct rms_norm {
    enum : size_t { x, weight, residual, n_inputs };
};

struct layer_norm {
    enum : size_t { x, weight, bias, n_inputs };
};

struct match_rms {
    enum : size_t { x, like, n_inputs };
};

struct statistical_top {
    enum : size_t { x, n_inputs };
};

struct lora {
    enum : size_t { x };
    static constexpr size_t y(size_t part) { return 1 + 3 * part; }
    static constexpr size_t a(size_t part) { return 2 + 3 * part; }
    static constexpr size_t b(size_t part) { return 3 + 3 * part; }
    static constexpr size_t n_inputs(size_t n_parts) { return 1 + 3 * n_parts; }
};

struct mix {
    enum : size_t { x, coefficients, weight, residual, n_inputs };
};

struct route {
    enum : size_t { logits, bias, n_inputs };
};

struct group_experts {
    enum : size_t { routes, n_inputs };
};

struct moe_glu {
    enum : size_t { x, order, starts, gate, up, gate_bias, up_bias, n_inputs };
};

struct moe_down {
    enum : size_t { h, order, starts, routes, down, bias, scale, residual, n_inputs };
};

struct delta_rule {
    enum : size_t { qkv, alpha, beta, decay, decay_bias, state, n_inputs };
};

struct gated_norm {
    enum : size_t { x, z, weight, n_inputs };
};

struct rope_table {
    enum : size_t { inv_freq, n_inputs };
};

struct rope {
    enum : size_t { x, table, n_inputs };
};

struct rope_store {
    enum : size_t { q, k, v, table, q_norm, k_norm, cache, n_inputs };
};

struct sample {
    enum : size_t { logits, n_inputs };
};

struct select_keys {
    enum : size_t { q, weights, cache, n_inputs };
};

struct selective_scan {
    enum : size_t { x, dt, b, c, decay, dt_bias, skip, state, n_inputs };
};

struct ssm_scan {
    enum : size_t { xbc, dt, decay, dt_bias, skip, state, n_inputs };
};

struct token_shift {
    enum : size_t { x, weight, state, n_inputs };
};

struct wkv7 {
    enum : size_t { r, w, k, v, a, first, mix, removal, scaling, bonus, state, n_inputs };
};

}  // namespace zinc::operands
