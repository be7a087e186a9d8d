/* Loads the library as a plug-in would, from C with nothing linked, and decodes one token. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kda/kda.h"

/* ISO C has no cast from an object pointer to a function's. */
static void load(void *library, const char *name, void *function) {
  void *symbol = dlsym(library, name);
  if (symbol == NULL) {
    fprintf(stderr, "dlopen_test: no %s\n", name);
    exit(1);
  }
  memcpy(function, &symbol, sizeof symbol);
}

static int check(int ok, const char *what) {
  if (!ok) fprintf(stderr, "dlopen_test: %s\n", what);
  return ok ? 0 : 1;
}

int main(int argc, char **argv) {
  int32_t (*version)(void);
  kda_status (*create)(const kda_problem *, const kda_options *, kda_plan **, kda_error *);
  kda_status (*run)(const kda_plan *, const kda_args *, kda_error *);
  void (*destroy)(kda_plan *);
  void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library == NULL) {
    fprintf(stderr, "dlopen_test: %s\n", argc == 2 ? dlerror() : "usage: dlopen_test LIBKDA.SO");
    return 1;
  }
  load(library, "kda_version", &version);
  load(library, "kda_plan_create", &create);
  load(library, "kda_run", &run);
  load(library, "kda_plan_destroy", &destroy);

  /* K = V = 4, no decay: S = k v^T, o = scale (q . k) v. */
  const float q[4] = {1, 0, 0, 0}, k[4] = {1, 0, 0, 0}, v[4] = {1, 2, 3, 4}, g[4] = {0, 0, 0, 0};
  const float beta[1] = {1};
  float o[4], state[16];
  kda_problem problem;
  kda_args args;
  kda_error error;
  kda_plan *plan = NULL;
  int i, failed = 0;
  kda_problem_init(&problem);
  problem.mode = KDA_DECODE;
  problem.gate = KDA_GATE_LOG;
  problem.scale = 1;
  problem.q = problem.k = problem.v = problem.g = problem.o = kda_dense(KDA_F32, 4, 1, 1, 1, 4);
  problem.beta = kda_dense(KDA_F32, 3, 1, 1, 1, 0);
  problem.final_state = kda_dense(KDA_F32, 4, 1, 1, 4, 4);
  memset(&error, 0, sizeof error);
  if (create(&problem, NULL, &plan, &error) != KDA_OK) return check(0, error.message);
  kda_args_init(&args);
  args.q = q;
  args.k = k;
  args.v = v;
  args.g = g;
  args.beta = beta;
  args.o = o;
  args.final_state = state;
  if (run(plan, &args, &error) != KDA_OK) return check(0, error.message);
  destroy(plan);
  failed +=
      check(version() == KDA_VERSION_MAJOR * 10000 + KDA_VERSION_MINOR * 100 + KDA_VERSION_PATCH,
            "the header's version is not the library's");
  for (i = 0; i < 4; ++i) failed += check(o[i] == v[i] && state[i] == v[i], "wrong result");
  for (i = 4; i < 16; ++i) failed += check(state[i] == 0, "wrong state");
  return failed != 0;
}
