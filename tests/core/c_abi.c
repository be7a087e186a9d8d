/* The header and the library from C99: one problem from the first call to the last. Called by
 * abi_test.cc; returns 0 or the line of the first thing that went wrong. */
#include "layout.h"

int kda_c_abi_test(void);

#define CHECK(condition)               \
  do {                                 \
    if (!(condition)) return __LINE__; \
  } while (0)

/* One token, K = V = 2, G = 0: S = beta k v^T, o = scale (q . k) beta v. */
int kda_c_abi_test(void) {
  const float q[2] = {1, 2}, k[2] = {3, 4}, v[2] = {5, 6}, g[2] = {0, 0}, beta[1] = {0.5f};
  const int32_t cu_seqlens[2] = {0, 1};
  float o[2] = {-1, -1}, state[4] = {-1, -1, -1, -1};
  kda_problem problem;
  kda_options options;
  kda_args args;
  kda_plan_info info;
  kda_error error;
  kda_plan *plan = NULL;
  kda_status status;

  kda_problem_init(&problem);
  CHECK(problem.struct_size == sizeof problem && problem.scale == KDA_DEFAULT_SCALE);
  problem.gate = KDA_GATE_LOG;
  problem.scale = 1;
  problem.q = problem.k = problem.v = problem.g = problem.o = kda_dense(KDA_F32, 4, 1, 1, 1, 2);
  problem.beta = kda_dense(KDA_F32, 3, 1, 1, 1, 0);
  problem.final_state = kda_dense(KDA_F32, 4, 1, 1, 2, 2);
  problem.cu_seqlens = kda_index_of(cu_seqlens, KDA_I32, 2);
  kda_options_init(&options);
  options.threads = 1;
  status = kda_plan_create(&problem, &options, &plan, &error);
  CHECK(status == KDA_OK);

  kda_plan_info_init(&info);
  CHECK(kda_plan_get_info(plan, &info) == KDA_OK);
  CHECK(info.sequences == 1 && info.tokens == 1 && info.chunks == 1);
  CHECK(kda_plan_describe(plan)[0] != '\0');

  kda_args_init(&args);
  args.q = q;
  args.k = k;
  args.v = v;
  args.g = g;
  args.beta = beta;
  args.o = o;
  args.final_state = state;
  CHECK(kda_run(plan, &args, &error) == KDA_OK);
  CHECK(o[0] == 27.5f && o[1] == 33.0f);
  CHECK(state[0] == 7.5f && state[1] == 9.0f && state[2] == 10.0f && state[3] == 12.0f);

  args.beta = NULL;
  CHECK(kda_run(plan, &args, &error) == KDA_ERROR_NULL_POINTER);
  CHECK(strcmp(error.argument, "beta") == 0);
  kda_plan_destroy(plan);
  return 0;
}
