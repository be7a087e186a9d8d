/* Serving: decode one token for each running sequence, their states in a pool of slots.
 *
 * A server keeps one state per sequence in a pool; at each step a batch of sequences, in any order,
 * gets a token. Slot -1 stands for a place in the batch that nobody uses.
 *
 *     cc decode_pool.c $(pkg-config --cflags --libs kda) && ./a.out
 *
 * Where kda is not in a folder of the system: PKG_CONFIG_PATH=PREFIX/lib/pkgconfig for the first,
 * LD_LIBRARY_PATH=PREFIX/lib for the second.
 */
#include <kda/kda.h>
#include <stdio.h>
#include <stdlib.h>

enum { kSlots = 8, kBatch = 4, kHeads = 2, kDim = 128 };

static float *floats(size_t count, float value) {
  float *data = malloc(count * sizeof *data);
  if (data == NULL) exit(1);
  for (size_t i = 0; i < count; ++i) data[i] = value;
  return data;
}

int main(void) {
  const int32_t slots[kBatch] = {5, 0, -1, 7};

  kda_problem problem;
  kda_problem_init(&problem);
  problem.mode = KDA_DECODE;
  problem.gate = KDA_GATE_BOUNDED;
  problem.lower_bound = -5;
  problem.flags = KDA_FLAG_QK_L2NORM | KDA_FLAG_BETA_LOGITS;
  const kda_tensor rows = kda_dense(KDA_F32, 4, kBatch, 1, kHeads, kDim);
  problem.q = problem.k = problem.v = problem.g = problem.o = rows;
  problem.beta = kda_dense(KDA_F32, 3, kBatch, 1, kHeads, 0);
  problem.initial_state = kda_dense(KDA_F32, 4, kSlots, kHeads, kDim, kDim);
  problem.final_state = problem.initial_state; /* in place */
  problem.slots = kda_index_of(slots, KDA_I32, kBatch);

  kda_plan *plan = NULL;
  kda_error error;
  if (kda_plan_create(&problem, NULL, &plan, &error) != KDA_OK) {
    fprintf(stderr, "%s: %s\n", error.argument, error.message);
    return 1;
  }
  printf("%s\n", kda_plan_describe(plan));

  const size_t count = (size_t)kBatch * kHeads * kDim;
  float *q = floats(count, 1), *k = floats(count, 1), *v = floats(count, 1);
  float *g = floats(count, -2), *o = floats(count, 0);
  float *beta = floats(kBatch * kHeads, 0);
  float *pool = floats((size_t)kSlots * kHeads * kDim * kDim, 0);

  kda_args args;
  kda_args_init(&args);
  args.q = q;
  args.k = k;
  args.v = v;
  args.g = g;
  args.beta = beta;
  args.initial_state = pool;
  args.final_state = pool;
  args.o = o;
  kda_status status = KDA_OK;
  for (int step = 0; step < 3 && status == KDA_OK; ++step) {
    status = kda_run(plan, &args, &error);
    printf("step %d: o of slots 5, 0, -1, 7:", step);
    for (int n = 0; n < kBatch; ++n) printf(" %.6f", o[(size_t)n * kHeads * kDim]);
    printf("\n");
  }
  if (status != KDA_OK) fprintf(stderr, "%s: %s\n", error.argument, error.message);

  kda_plan_destroy(plan);
  free(q), free(k), free(v), free(g), free(o), free(beta), free(pool);
  return status == KDA_OK ? 0 : 1;
}
