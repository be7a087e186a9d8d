/* The layout of every struct of the C ABI, checked by the compiler in C and in C++ (E07). A field
 * may be added at a struct's end; nothing below may ever change. */
#ifndef KDA_TESTS_CORE_LAYOUT_H_
#define KDA_TESTS_CORE_LAYOUT_H_

#include "kda/kda.h"

/* An array of negative size where the condition fails: C99 has no static assertion. */
#define KDA_PIN(type, field, at) \
  typedef char kda_pin_##type##_##field[offsetof(type, field) == (at) ? 1 : -1]
#define KDA_PIN_SIZE(type, size) typedef char kda_pin_##type[sizeof(type) == (size) ? 1 : -1]

KDA_PIN(kda_tensor, dtype, 0);
KDA_PIN(kda_tensor, rank, 4);
KDA_PIN(kda_tensor, shape, 8);
KDA_PIN(kda_tensor, stride, 40);
KDA_PIN_SIZE(kda_tensor, 72);

KDA_PIN(kda_index, data, 0);
KDA_PIN(kda_index, dtype, 8);
KDA_PIN(kda_index, reserved, 12);
KDA_PIN(kda_index, count, 16);
KDA_PIN(kda_index, stride, 24);
KDA_PIN_SIZE(kda_index, 32);

KDA_PIN(kda_problem, struct_size, 0);
KDA_PIN(kda_problem, mode, 8);
KDA_PIN(kda_problem, gate, 12);
KDA_PIN(kda_problem, state_order, 16);
KDA_PIN(kda_problem, reserved, 20);
KDA_PIN(kda_problem, flags, 24);
KDA_PIN(kda_problem, scale, 32);
KDA_PIN(kda_problem, lower_bound, 40);
KDA_PIN(kda_problem, q, 48);
KDA_PIN(kda_problem, k, 120);
KDA_PIN(kda_problem, v, 192);
KDA_PIN(kda_problem, g, 264);
KDA_PIN(kda_problem, beta, 336);
KDA_PIN(kda_problem, A_log, 408);
KDA_PIN(kda_problem, dt_bias, 480);
KDA_PIN(kda_problem, o, 552);
KDA_PIN(kda_problem, cu_seqlens, 624);
KDA_PIN(kda_problem, initial_state, 656);
KDA_PIN(kda_problem, final_state, 728);
KDA_PIN(kda_problem, slots, 800);
KDA_PIN(kda_problem, has_initial, 832);
KDA_PIN(kda_problem, checkpoints, 864);
KDA_PIN(kda_problem, checkpoint_every, 936);
KDA_PIN(kda_problem, checkpoint_offsets, 944);
KDA_PIN(kda_problem, checkpoint_tokens, 976);
KDA_PIN_SIZE(kda_problem, 1008);

KDA_PIN(kda_executor, context, 0);
KDA_PIN(kda_executor, run, 8);
KDA_PIN_SIZE(kda_executor, 16);

KDA_PIN(kda_options, struct_size, 0);
KDA_PIN(kda_options, backend, 8);
KDA_PIN(kda_options, isa, 12);
KDA_PIN(kda_options, solver, 16);
KDA_PIN(kda_options, threads, 20);
KDA_PIN(kda_options, switches_off, 24);
KDA_PIN(kda_options, flags, 28);
KDA_PIN(kda_options, executor, 32);
KDA_PIN_SIZE(kda_options, 48);

KDA_PIN(kda_args, struct_size, 0);
KDA_PIN(kda_args, q, 8);
KDA_PIN(kda_args, k, 16);
KDA_PIN(kda_args, v, 24);
KDA_PIN(kda_args, g, 32);
KDA_PIN(kda_args, beta, 40);
KDA_PIN(kda_args, A_log, 48);
KDA_PIN(kda_args, dt_bias, 56);
KDA_PIN(kda_args, initial_state, 64);
KDA_PIN(kda_args, o, 72);
KDA_PIN(kda_args, final_state, 80);
KDA_PIN(kda_args, checkpoints, 88);
KDA_PIN(kda_args, workspace, 96);
KDA_PIN(kda_args, workspace_size, 104);
KDA_PIN_SIZE(kda_args, 112);

KDA_PIN(kda_error, argument, 0);
KDA_PIN(kda_error, message, 48);
KDA_PIN_SIZE(kda_error, 512);

KDA_PIN(kda_plan_info, struct_size, 0);
KDA_PIN(kda_plan_info, backend, 8);
KDA_PIN(kda_plan_info, isa, 12);
KDA_PIN(kda_plan_info, solver, 16);
KDA_PIN(kda_plan_info, threads, 20);
KDA_PIN(kda_plan_info, switches, 24);
KDA_PIN(kda_plan_info, switches_fallback, 28);
KDA_PIN(kda_plan_info, workspace_size, 32);
KDA_PIN(kda_plan_info, sequences, 40);
KDA_PIN(kda_plan_info, tokens, 48);
KDA_PIN(kda_plan_info, chunks, 56);
KDA_PIN(kda_plan_info, checkpoints, 64);
KDA_PIN(kda_plan_info, checkpoints_skipped, 72);
KDA_PIN(kda_plan_info, products, 80);
KDA_PIN(kda_plan_info, reserved, 84);
KDA_PIN_SIZE(kda_plan_info, 88);

KDA_PIN(kda_isa_info, isa, 0);
KDA_PIN(kda_isa_info, name, 8);
KDA_PIN(kda_isa_info, architecture, 16);
KDA_PIN(kda_isa_info, needs, 24);
KDA_PIN_SIZE(kda_isa_info, 32);

KDA_PIN(kda_switch_info, bit, 0);
KDA_PIN(kda_switch_info, name, 8);
KDA_PIN(kda_switch_info, stage, 16);
KDA_PIN(kda_switch_info, needs, 24);
KDA_PIN(kda_switch_info, effect, 32);
KDA_PIN(kda_switch_info, same_bits, 40);
KDA_PIN_SIZE(kda_switch_info, 48);

KDA_PIN(kda_limit_info, name, 0);
KDA_PIN(kda_limit_info, min, 8);
KDA_PIN(kda_limit_info, max, 16);
KDA_PIN(kda_limit_info, note, 24);
KDA_PIN_SIZE(kda_limit_info, 32);

#endif /* KDA_TESTS_CORE_LAYOUT_H_ */
