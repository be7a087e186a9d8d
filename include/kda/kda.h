/* libkda: Kimi Delta Attention (KDA), forward pass. C ABI.
 *
 * Per value head, with a state S of shape [K, V], for each token t of a sequence:
 *
 *     S   <- diag(exp(g_t)) S                          decay, per key channel
 *     S   <- S + beta_t * k_t (v_t - S^T k_t)^T        delta rule
 *     o_t  = scale * S^T q_t
 *
 * Use: fill a kda_problem (shapes, dtypes, gate), make a kda_plan of it once, run the plan on
 * pointers as often as wanted, from any number of threads.
 *
 * Versioning: every struct handed to a function starts with its size (`struct_size`, set by the
 * *_init functions below). A library newer than the caller takes the fields past that size as their
 * defaults (zero bytes); a library older than the caller refuses a struct whose unknown tail is not
 * zero. Fields are only ever added at the end. The structs inside them (kda_tensor, kda_index,
 * kda_executor) and kda_error stay as they are.
 *
 * Errors: every fallible function returns a kda_status and, where `error` is not NULL, fills it
 * with the argument's name and a one-line message giving its value and what is allowed. On an error
 * no output has been written. Nothing throws, aborts or prints.
 */
#ifndef KDA_KDA_H_
#define KDA_KDA_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define KDA_API
#else
#define KDA_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define KDA_VERSION_MAJOR 0
#define KDA_VERSION_MINOR 1
#define KDA_VERSION_PATCH 0

/* ---- enumerations ------------------------------------------------------------------------- */

typedef enum kda_status {
  KDA_OK = 0,
  KDA_ERROR_NULL_POINTER = 1, /* a required pointer is NULL */
  KDA_ERROR_STRUCT_SIZE = 2,  /* struct_size is impossible, or an unknown tail is not zero */
  KDA_ERROR_ENUM = 3,         /* an enumeration or flag value the library does not know */
  KDA_ERROR_DTYPE = 4,        /* a dtype this tensor cannot have */
  KDA_ERROR_SHAPE = 5,        /* a rank or dimension is out of range or disagrees with another */
  KDA_ERROR_STRIDE = 6,       /* strides the library does not take */
  KDA_ERROR_OVERFLOW = 7,     /* a size or offset does not fit in 63 bits */
  KDA_ERROR_CU_SEQLENS = 8,   /* offsets not starting at 0, decreasing or past the tensor */
  KDA_ERROR_SLOT = 9,         /* a state slot out of range, or used twice */
  KDA_ERROR_GATE = 10,        /* lower_bound or A_log not fitting the gate */
  KDA_ERROR_CHECKPOINT = 11,  /* checkpoint tokens not increasing, or both forms given */
  KDA_ERROR_OPTION = 12,      /* an option out of range or in conflict with another */
  KDA_ERROR_UNAVAILABLE = 13, /* a forced instruction set or backend this machine lacks */
  KDA_ERROR_WORKSPACE = 14,   /* the workspace is too small, misaligned or missing */
  KDA_ERROR_ALIAS = 15,       /* buffers overlap in a way that is not allowed */
  KDA_ERROR_OUT_OF_MEMORY = 16,
  KDA_ERROR_INTERNAL = 17, /* a fault of the library itself */
  KDA_ERROR_ALIGNMENT = 18 /* an address is no multiple of the size of the elements there */
} kda_status;

typedef enum kda_dtype {
  KDA_F32 = 1,
  KDA_BF16 = 2,
  KDA_F16 = 3,
  KDA_I32 = 4, /* cu_seqlens, slots */
  KDA_I64 = 5
} kda_dtype;

typedef enum kda_mode {
  KDA_PREFILL = 0, /* chunked form, any lengths */
  KDA_DECODE = 1   /* token by token: one token per sequence, or a short window of them, with the
                      bits of as many calls of one token. A bf16 state is therefore rounded after
                      every token. checkpoint_every = 1 gives the state after each: speculative
                      tokens are committed by keeping the one after the last that was accepted */
} kda_mode;

/* How `g` is turned into the log-decay G (natural logarithm) of the recurrence. */
typedef enum kda_gate {
  KDA_GATE_LOG = 0,     /* G = g, already activated, in [-inf, 0]                             */
  KDA_GATE_BOUNDED = 1, /* G = lower_bound * sigmoid(exp(A_log) * (g + dt_bias))  (Kimi K3)   */
  KDA_GATE_SOFTPLUS = 2 /* G = -exp(A_log) * softplus(g + dt_bias)            (Kimi-Linear)   */
} kda_gate;

typedef enum kda_state_order {
  KDA_STATE_KV = 0, /* states are [.., K, V] */
  KDA_STATE_VK = 1  /* states are [.., V, K] */
} kda_state_order;

/* kda_problem.flags */
#define KDA_FLAG_BETA_LOGITS UINT64_C(1) /* beta is a logit: sigmoid(beta) is used */
#define KDA_FLAG_QK_L2NORM UINT64_C(2)   /* q, k <- x / sqrt(sum_d x_d^2 + 1e-6) */

typedef enum kda_backend {
  KDA_BACKEND_AUTO = 0,
  KDA_BACKEND_CPU = 1,
  KDA_BACKEND_REFERENCE = 2 /* the recurrence in fp64, token by token: slow, the oracle */
} kda_backend;

typedef enum kda_isa {
  KDA_ISA_AUTO = 0,     /* the best one here, capped by the environment variable KDA_MAX_ISA (a name
                           of this architecture; anything else is an error) */
  KDA_ISA_BASELINE = 1, /* any x86-64 (SSE2) */
  KDA_ISA_AVX2 = 2,     /* AVX2 + FMA + F16C */
  KDA_ISA_AVX512 = 3,   /* AVX-512 F, BW, DQ, VL; fp32 products, as the two above */
  /* and BF16: prefill of bf16 q, k, v multiplies the state, q and k rounded to bf16, with fp32
   * sums; anything else as KDA_ISA_AVX512 */
  KDA_ISA_AVX512_BF16 = 4,
  /* and AMX-TILE, AMX-BF16: on tiles, sums over tokens in split bf16 too. Linux lends tile
   * registers to a process that asks: the first plan that multiplies bf16 does, no other. Refused,
   * AUTO takes another instruction set and kda_plan_describe() says so; forced, that plan fails
   * with KDA_ERROR_UNAVAILABLE */
  KDA_ISA_AMX = 5,
  KDA_ISA_NEON = 6 /* any aarch64; fp32 products */
} kda_isa;         /* not in an order: kda_isa_row() has it */

typedef enum kda_solver {
  KDA_SOLVER_AUTO = 0,         /* block with safe_gate, substitution without */
  KDA_SOLVER_SUBSTITUTION = 1, /* row by row */
  KDA_SOLVER_BLOCK = 2,        /* 16-row blocks: products off the diagonal, substitution on it */
  KDA_SOLVER_NEUMANN64 = 3     /* the published 64-row bf16 Neumann chain; WRONG on correlated keys
                                  with slow gates, kept to reproduce it; never chosen by itself */
} kda_solver;

/* The switches of the optimisation ladder, kda_options.switches_off. kda_switch() names and
 * explains them, kda_rung() has the published combinations. */
#define KDA_SWITCH_SAFE_GATE UINT32_C(1)      /* intra-chunk part as matrix products */
#define KDA_SWITCH_FUSE UINT32_C(2)           /* one pass instead of four through memory */
#define KDA_SWITCH_UNIFIED_LAYOUT UINT32_C(4) /* address tokens where they lie; no gather/scatter */
#define KDA_SWITCH_FLAT_GRID UINT32_C(8)      /* visit only the chunks that exist */
#define KDA_SWITCH_HEAD_BLOCK UINT32_C(16)    /* several heads in one step, stage by stage */
#define KDA_SWITCHES_ALL UINT32_C(31)

/* ---- tensors ------------------------------------------------------------------------------ */

#define KDA_MAX_RANK 4

/* Dtype, shape and strides (in elements) of a tensor whose pointer is given to kda_run.
 * rank 0: the tensor is absent. All strides 0: dense, row-major.
 * The last dimension of q, k, v, g, o and of the two of a state must be contiguous. */
typedef struct kda_tensor {
  int32_t dtype; /* kda_dtype */
  int32_t rank;
  int64_t shape[KDA_MAX_RANK];
  int64_t stride[KDA_MAX_RANK];
} kda_tensor;

/* Whole numbers on the host, at any address (they need not be aligned), read while the plan is made
 * and not kept. data NULL: absent. */
typedef struct kda_index {
  const void *data;
  int32_t dtype; /* KDA_I32 or KDA_I64 */
  int32_t reserved;
  int64_t count;
  int64_t stride; /* in elements; 0 means 1 */
} kda_index;

/* ---- the problem -------------------------------------------------------------------------- */

#define KDA_DEFAULT_SCALE (-1e300) /* stands for dim_k^-0.5 */

typedef struct kda_problem {
  size_t struct_size;
  int32_t mode;        /* kda_mode */
  int32_t gate;        /* kda_gate */
  int32_t state_order; /* kda_state_order, of initial_state, final_state and checkpoints */
  int32_t reserved;    /* 0 */
  uint64_t flags;      /* KDA_FLAG_* */
  double scale;        /* any finite fp32 number; KDA_DEFAULT_SCALE (set by kda_problem_init) */
  double lower_bound;  /* bounded gate: finite, <= 0 (0: no decay), must be set (kda_problem_init
                          leaves it at 1, which is refused); unused otherwise */

  /* Inputs. H query/key heads, HV value heads, HV a multiple of H: value head hv reads query/key
   * head hv / (HV / H). Each of q, k, v, g, beta is bf16, fp16 or fp32 (q and k alike). */
  kda_tensor q;       /* [B, T, H, K]   1 <= K <= 256 */
  kda_tensor k;       /* [B, T, H, K]                 */
  kda_tensor v;       /* [B, T, HV, V]  1 <= V <= 256 */
  kda_tensor g;       /* [B, T, HV, K]                */
  kda_tensor beta;    /* [B, T, HV]                   */
  kda_tensor A_log;   /* [HV] fp32; optional with the bounded gate (absent: exp(A_log) = 1),
                         required with softplus, refused with log */
  kda_tensor dt_bias; /* [HV, K] or [HV * K] fp32; optional (absent: 0), refused with log */
  kda_tensor o;       /* [B, T, HV, V]  output: bf16, fp16 or fp32 */

  /* Packing. Absent: B sequences of T tokens. Given (B = 1): N + 1 non-decreasing offsets along T,
   * first 0, last <= T; rows of `o` past the last offset are set to zero. */
  kda_index cu_seqlens;

  /* States, fp32 or bf16, K and V in `state_order`. Without `slots` the first dimension is N. */
  kda_tensor initial_state; /* [N or slots, HV, K, V]; absent: zeros */
  kda_tensor final_state;   /* [N or slots, HV, K, V]; absent: not computed. May be the same buffer
                               as initial_state (in place) when dtype, shape and strides agree */
  kda_index slots;          /* [N] slot of each sequence in the first dimension of initial_state and
                               final_state. -1: the sequence is skipped: its rows of `o` become
                               zero, no slot is touched. Any other value must be in range, and no
                               slot may be written twice */
  kda_index has_initial;    /* [N] 0: this sequence starts from zeros whatever its slot holds.
                               Absent: every sequence starts from initial_state */

  /* States at chosen tokens, written in the same pass: `checkpoints` [C, HV, K, V].
   * Either every `checkpoint_every` tokens (c-th row of a sequence of length L after token
   * (c + 1) * checkpoint_every; floor(L / checkpoint_every) rows a sequence, sequences in order),
   * or a list: checkpoint_tokens[checkpoint_offsets[n] .. checkpoint_offsets[n + 1]) are the token
   * counts, increasing, >= 1, of sequence n, one row each in that order; a row whose count exceeds
   * the sequence's length is left untouched (see kda_plan_checkpoint). Rows of skipped sequences
   * are left untouched. */
  kda_tensor checkpoints;
  int64_t checkpoint_every; /* 0: none */
  kda_index checkpoint_offsets;
  kda_index checkpoint_tokens;
} kda_problem;

/* ---- options ------------------------------------------------------------------------------ */

/* Runs task(argument, i) for i in [0, count), each once, in any order, in parallel or not, and
 * returns when all are done. count is at most kda_options.threads. `context` must outlive the plan.
 * An executor that may start another run of the same plan inside a task, on the same thread, must
 * give every run a workspace of its own: the plan's is held meanwhile. */
typedef void (*kda_task)(void *argument, int32_t index);
typedef struct kda_executor {
  void *context;
  void (*run)(void *context, int32_t count, kda_task task, void *argument); /* NULL: own threads */
} kda_executor;

typedef struct kda_options {
  size_t struct_size;
  int32_t backend; /* kda_backend */
  int32_t isa;     /* kda_isa; forcing one this machine lacks is an error */
  int32_t solver;  /* kda_solver */
  int32_t threads; /* tasks at a time; 0: as many as processors. The bits never depend on it */
  uint32_t switches_off; /* KDA_SWITCH_* to turn off; 0: all on (optimized) */
  uint32_t flags;        /* KDA_OPTION_* */
  kda_executor executor;
} kda_options;

/* No workspace inside the plan: each kda_run must bring one. */
#define KDA_OPTION_CALLER_WORKSPACE UINT32_C(1)

/* ---- running ------------------------------------------------------------------------------ */

/* Pointers in the shapes of the problem. Each must be a multiple of the size of its elements (else
 * KDA_ERROR_ALIGNMENT); more alignment is not needed. Those of absent tensors and of tensors
 * without an element are ignored. What is written (o, final_state, checkpoints, workspace) must not
 * overlap anything else, from its first byte to its last, gaps between strides included;
 * final_state may be initial_state. */
typedef struct kda_args {
  size_t struct_size;
  const void *q, *k, *v, *g, *beta, *A_log, *dt_bias, *initial_state;
  void *o, *final_state, *checkpoints;
  void *workspace; /* 64-byte aligned, kda_plan_info.workspace_size bytes; NULL: the plan's own,
                            which one run at a time can use (others wait) */
  size_t workspace_size; /* bytes */
} kda_args;

typedef struct kda_error {
  char argument[48]; /* name of the argument at fault, e.g. "cu_seqlens" */
  char message[464]; /* one line: the argument, its value, what is allowed */
} kda_error;

typedef struct kda_plan kda_plan;

typedef struct kda_plan_info {
  size_t struct_size;
  int32_t backend; /* kda_backend that will run */
  int32_t isa;     /* kda_isa that will run */
  int32_t solver;  /* kda_solver that will run */
  int32_t threads;
  uint32_t switches;           /* KDA_SWITCH_* in effect */
  uint32_t switches_fallback;  /* KDA_SWITCH_* asked for but given up: kda_plan_describe says why */
  size_t workspace_size;       /* bytes */
  int64_t sequences;           /* N */
  int64_t tokens;              /* tokens in sequences */
  int64_t chunks;              /* 64-token chunks that exist, per head */
  int64_t checkpoints;         /* rows C */
  int64_t checkpoints_skipped; /* rows that will be left untouched */
  int32_t products;            /* KDA_F32, or KDA_BF16: the matrix products take operands rounded to
                                  bf16 (KDA_ISA_AVX512_BF16, KDA_ISA_AMX) */
  int32_t reserved;            /* 0 */
} kda_plan_info;

/* Validates, once. `options` NULL: defaults. On success *plan must be given to kda_plan_destroy.
 * A plan is immutable: any number of threads may run it. */
KDA_API kda_status kda_plan_create(const kda_problem *problem, const kda_options *options,
                                   kda_plan **plan, kda_error *error);
KDA_API void kda_plan_destroy(kda_plan *plan); /* NULL is fine */

KDA_API kda_status kda_run(const kda_plan *plan, const kda_args *args, kda_error *error);

/* Fills `info` up to info->struct_size. */
KDA_API kda_status kda_plan_get_info(const kda_plan *plan, kda_plan_info *info);
/* One line naming what will run and every fallback with its reason; lives as long as the plan. */
KDA_API const char *kda_plan_describe(const kda_plan *plan);
/* Row `row` of `checkpoints`: its sequence, its token count, and whether it will be written. */
KDA_API kda_status kda_plan_checkpoint(const kda_plan *plan, int64_t row, int64_t *sequence,
                                       int64_t *token, int32_t *written);

/* ---- the library -------------------------------------------------------------------------- */

KDA_API int32_t kda_version(void); /* major * 10000 + minor * 100 + patch */
KDA_API const char *kda_version_string(void);
KDA_API const char *kda_status_name(int32_t status);
KDA_API const char *kda_dtype_name(int32_t dtype);     /* "f32", "bf16", .. NULL: unknown */
KDA_API const char *kda_isa_name(int32_t isa);         /* "auto", "baseline", "avx2", .. or NULL */
KDA_API const char *kda_solver_name(int32_t solver);   /* "auto", "substitution", .. or NULL */
KDA_API const char *kda_backend_name(int32_t backend); /* "auto", "cpu", "reference" or NULL */
/* 1: the processor has it, the system saves its registers, and KDA_MAX_ISA does not rule it out.
 * Asks for nothing: whether the system lends KDA_ISA_AMX its tile registers, a plan that uses them
 * shows. */
KDA_API int32_t kda_isa_available(int32_t isa);

/* Row `index` of the table of instruction sets, or NULL past its end. Those of one architecture are
 * together: first the one that all of its processors have, then in the order of KDA_ISA_AUTO, which
 * takes the last that is available (and fast there); KDA_MAX_ISA rules out the rows after the one
 * it names. Rows belong to the library, are static, and may be added anywhere. */
typedef struct kda_isa_info {
  int32_t isa;              /* kda_isa */
  const char *name;         /* "avx2" */
  const char *architecture; /* "x86-64", "aarch64" */
  const char *needs;        /* what a processor must have, for people */
} kda_isa_info;
KDA_API const kda_isa_info *kda_isa_row(int32_t index);

/* Row `index` of the switch table, or NULL past its end. Rows belong to the library, are static,
 * and grow at their end only. */
typedef struct kda_switch_info {
  uint32_t bit;
  const char *name;   /* "safe_gate" */
  const char *stage;  /* the stage it acts on */
  const char *needs;  /* switches it needs, comma separated; "" for none */
  const char *effect; /* one line: what on and off mean */
  int32_t same_bits;  /* 1: on and off give bit-identical results */
} kda_switch_info;
KDA_API const kda_switch_info *kda_switch(int32_t index);

/* Rung `index` of the ladder, "original" first: its name and the switches on. 0 past the end. */
KDA_API int32_t kda_rung(int32_t index, const char **name, uint32_t *switches_on);

/* Row `index` of the validator's limits, or NULL past the end: what it limits, smallest and largest
 * value taken, and a line on it. Rows as above. */
typedef struct kda_limit_info {
  const char *name;
  double min, max;
  const char *note;
} kda_limit_info;
KDA_API const kda_limit_info *kda_limit(int32_t index);

/* ---- helpers, compiled into the caller ------------------------------------------------------ */

static inline void kda_problem_init(kda_problem *problem) {
  memset(problem, 0, sizeof *problem);
  problem->struct_size = sizeof *problem;
  problem->scale = KDA_DEFAULT_SCALE;
  problem->lower_bound = 1;
}

static inline void kda_options_init(kda_options *options) {
  memset(options, 0, sizeof *options);
  options->struct_size = sizeof *options;
}

static inline void kda_args_init(kda_args *args) {
  memset(args, 0, sizeof *args);
  args->struct_size = sizeof *args;
}

static inline void kda_plan_info_init(kda_plan_info *info) {
  memset(info, 0, sizeof *info);
  info->struct_size = sizeof *info;
}

/* A dense tensor; dimensions past `rank` are ignored. */
static inline kda_tensor kda_dense(kda_dtype dtype, int32_t rank, int64_t d0, int64_t d1,
                                   int64_t d2, int64_t d3) {
  kda_tensor t;
  memset(&t, 0, sizeof t);
  t.dtype = (int32_t)dtype;
  t.rank = rank;
  t.shape[0] = d0;
  t.shape[1] = d1;
  t.shape[2] = d2;
  t.shape[3] = d3;
  return t;
}

static inline kda_index kda_index_of(const void *data, kda_dtype dtype, int64_t count) {
  kda_index index;
  memset(&index, 0, sizeof index);
  index.data = data;
  index.dtype = (int32_t)dtype;
  index.count = count;
  return index;
}

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* KDA_KDA_H_ */
