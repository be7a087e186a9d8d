/* Serving: decode for running sequences, their states in a pool of slots: one token for each, then
 * a window of drafted tokens (speculative decoding), of which some are accepted.
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
#include <string.h>

enum { kSlots = 8, kBatch = 4, kHeads = 2, kDim = 128, kWindow = 3 };
enum { kState = kHeads * kDim * kDim }; /* elements of one sequence's state */
static const int32_t slots[kBatch] = {5, 0, -1, 7};

static float *floats(size_t count, float value) {
  float *data = malloc(count * sizeof *data);
  if (data == NULL) exit(1);
  for (size_t i = 0; i < count; ++i) data[i] = value;
  return data;
}

/* The message begins with the name of the argument at fault. */
static void must(kda_status status, const kda_error *error) {
  if (status == KDA_OK) return;
  fprintf(stderr, "%s\n", error->message);
  exit(1);
}

/* `tokens` of each sequence at once. */
static kda_problem decode_of(int64_t tokens) {
  kda_problem problem;
  kda_problem_init(&problem);
  problem.mode = KDA_DECODE;
  problem.gate = KDA_GATE_BOUNDED;
  problem.lower_bound = -5;
  problem.flags = KDA_FLAG_QK_L2NORM | KDA_FLAG_BETA_LOGITS;
  const kda_tensor rows = kda_dense(KDA_F32, 4, kBatch, tokens, kHeads, kDim);
  problem.q = problem.k = problem.v = problem.g = problem.o = rows;
  problem.beta = kda_dense(KDA_F32, 3, kBatch, tokens, kHeads, 0);
  problem.initial_state = kda_dense(KDA_F32, 4, kSlots, kHeads, kDim, kDim);
  problem.slots = kda_index_of(slots, KDA_I32, kBatch);
  return problem;
}

static kda_plan *plan_of(const kda_problem *problem) {
  kda_plan *plan = NULL;
  kda_error error;
  must(kda_plan_create(problem, NULL, &plan, &error), &error);
  printf("%s\n", kda_plan_describe(plan));
  return plan;
}

static void print_o(const float *o, int tokens) { /* of the last token */
  for (int n = 0; n < kBatch; ++n) {
    printf(" %.6f", o[((size_t)n * tokens + tokens - 1) * kHeads * kDim]);
  }
  printf("\n");
}

int main(void) {
  const size_t count = (size_t)kBatch * kWindow * kHeads * kDim; /* room for a window */
  float *q = floats(count, 1), *k = floats(count, 1), *v = floats(count, 1);
  float *g = floats(count, -2), *o = floats(count, 0);
  float *beta = floats(kBatch * kWindow * kHeads, 0);
  float *pool = floats((size_t)kSlots * kState, 0);
  kda_args args;
  kda_args_init(&args);
  args.q = q;
  args.k = k;
  args.v = v;
  args.g = g;
  args.beta = beta;
  args.o = o;
  args.initial_state = pool;
  kda_error error;

  /* One token at a time: the states move on in place. */
  kda_problem one = decode_of(1);
  one.final_state = one.initial_state;
  kda_plan *plan = plan_of(&one);
  args.final_state = pool;
  for (int step = 0; step < 3; ++step) {
    must(kda_run(plan, &args, &error), &error);
    printf("step %d: o of slots 5, 0, -1, 7:", step);
    print_o(o, 1);
  }
  kda_plan_destroy(plan);

  /* A window: all drafts in one run, which leaves the pool alone and gives the state after each of
   * them. The model then accepts some; the state after the last of these goes into the pool. */
  kda_problem window = decode_of(kWindow);
  window.checkpoint_every = 1;
  window.checkpoints = kda_dense(KDA_F32, 4, kBatch * kWindow, kHeads, kDim, kDim);
  plan = plan_of(&window);
  float *after = floats((size_t)kBatch * kWindow * kState, 0);
  args.final_state = NULL;
  args.checkpoints = after;
  must(kda_run(plan, &args, &error), &error);
  printf("window of %d: o of slots 5, 0, -1, 7:", kWindow);
  print_o(o, kWindow);
  const int accepted[kBatch] = {3, 1, 0, 2};
  for (int n = 0; n < kBatch; ++n) {
    if (slots[n] < 0 || accepted[n] == 0) continue;
    const size_t row = (size_t)n * kWindow + (size_t)accepted[n] - 1;
    memcpy(pool + (size_t)slots[n] * kState, after + row * kState, kState * sizeof *pool);
    printf("slot %d: %d accepted, S[0,0] = %.6f\n", slots[n], accepted[n],
           pool[(size_t)slots[n] * kState]);
  }

  kda_plan_destroy(plan);
  free(q), free(k), free(v), free(g), free(o), free(beta), free(pool), free(after);
  return 0;
}
