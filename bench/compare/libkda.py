"""The C ABI of include/kda/kda.h through ctypes: as much of it as a comparison needs."""

import ctypes

from ctypes import POINTER, c_char, c_char_p, c_double, c_int32, c_int64, c_size_t, c_uint32
from ctypes import c_uint64, c_void_p

F32, BF16, I64 = 1, 2, 5
PREFILL, DECODE = 0, 1
# A scalar gate is a log gate with the same value in all channels; no caller here gives libkda one.
GATES = {"log": 0, "bounded": 1, "softplus": 2}
DEFAULT_SCALE = -1e300


class Tensor(ctypes.Structure):
    _fields_ = [("dtype", c_int32), ("rank", c_int32), ("shape", c_int64 * 4),
                ("stride", c_int64 * 4)]


class Index(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int32), ("reserved", c_int32),
                ("count", c_int64), ("stride", c_int64)]


class Problem(ctypes.Structure):
    _fields_ = ([("struct_size", c_size_t), ("mode", c_int32), ("gate", c_int32),
                 ("state_order", c_int32), ("reserved", c_int32), ("flags", c_uint64),
                 ("scale", c_double), ("lower_bound", c_double)] +
                [(name, Tensor) for name in ("q", "k", "v", "g", "beta", "A_log", "dt_bias", "o")] +
                [("cu_seqlens", Index), ("initial_state", Tensor), ("final_state", Tensor),
                 ("slots", Index), ("has_initial", Index), ("checkpoints", Tensor),
                 ("checkpoint_every", c_int64), ("checkpoint_offsets", Index),
                 ("checkpoint_tokens", Index)])


class Executor(ctypes.Structure):
    _fields_ = [("context", c_void_p), ("run", c_void_p)]


class Options(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("backend", c_int32), ("isa", c_int32),
                ("solver", c_int32), ("threads", c_int32), ("switches_off", c_uint32),
                ("flags", c_uint32), ("executor", Executor)]


class Args(ctypes.Structure):
    _fields_ = ([("struct_size", c_size_t)] +
                [(name, c_void_p) for name in ("q", "k", "v", "g", "beta", "A_log", "dt_bias",
                                               "initial_state", "o", "final_state", "checkpoints",
                                               "workspace")] +
                [("workspace_size", c_size_t)])


class Error(ctypes.Structure):
    _fields_ = [("argument", c_char * 48), ("message", c_char * 464)]


def load(path):
    library = ctypes.CDLL(path)
    library.kda_plan_create.argtypes = [POINTER(Problem), POINTER(Options), POINTER(c_void_p),
                                        POINTER(Error)]
    library.kda_run.argtypes = [c_void_p, POINTER(Args), POINTER(Error)]
    library.kda_plan_destroy.argtypes = [c_void_p]
    library.kda_plan_destroy.restype = None
    library.kda_plan_describe.argtypes = [c_void_p]
    library.kda_plan_describe.restype = c_char_p
    library.kda_version_string.restype = c_char_p
    library.kda_plan_get_info.argtypes = [c_void_p, POINTER(Info)]
    library.kda_isa_name.restype = c_char_p
    return library


def isa_of(library, name):
    """The number of an instruction set; the library refuses those that this machine lacks."""
    known = []
    for number in range(64):
        text = library.kda_isa_name(number)
        if text is not None:
            known.append(text.decode())
            if known[-1] == name:
                return number
    raise Failure("--isa: '%s' is not one of %s" % (name, ", ".join(known)))


def dense(dtype, shape):
    tensor = Tensor(dtype=dtype, rank=len(shape))
    for i, size in enumerate(shape):
        tensor.shape[i] = size
    return tensor


class Info(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("backend", c_int32), ("isa", c_int32),
                ("solver", c_int32), ("threads", c_int32), ("switches", c_uint32),
                ("switches_fallback", c_uint32), ("workspace_size", c_size_t),
                ("sequences", c_int64), ("tokens", c_int64), ("chunks", c_int64),
                ("checkpoints", c_int64), ("checkpoints_skipped", c_int64),
                ("products", c_int32), ("reserved", c_int32)]


class Failure(Exception):
    """The library's own words: the argument, its value, what is allowed."""


class Bound:
    """A plan bound to numpy arrays: [B, T, H, ...] inputs, fp32 g, beta and states."""

    def __init__(self, library, arrays, dtype, gate, decode, threads, isa, cu_seqlens=None):
        """arrays: q k v g beta initial_state o final_state and, for raw gates, A_log and dt_bias;
        `dtype` is that of q, k, v and o (bf16 as uint16 arrays); `isa` a name or "auto".
        `cu_seqlens`: int64, where packed sequences begin and the last one ends; B is 1 then."""
        self._library, self._arrays = library, (arrays, cu_seqlens)
        self._plan, self._error = None, Error()
        problem = Problem(struct_size=ctypes.sizeof(Problem), gate=gate, scale=DEFAULT_SCALE,
                          mode=DECODE if decode else PREFILL, lower_bound=-5)
        self._args = Args(struct_size=ctypes.sizeof(Args))
        for name, array in arrays.items():
            assert array.flags["C_CONTIGUOUS"]
            kind = dtype if name in ("q", "k", "v", "o") else F32
            setattr(problem, name, dense(kind, array.shape))
            setattr(self._args, name, array.ctypes.data)
        if cu_seqlens is not None:
            assert cu_seqlens.dtype == "int64" and cu_seqlens.flags["C_CONTIGUOUS"]
            problem.cu_seqlens = Index(data=cu_seqlens.ctypes.data, dtype=I64,
                                       count=len(cu_seqlens))
        options = Options(struct_size=ctypes.sizeof(Options), threads=threads,
                          isa=isa_of(library, isa))
        plan = c_void_p()
        self._check(library.kda_plan_create(problem, options, plan, self._error))
        self._plan = plan
        self.description = library.kda_plan_describe(plan).decode()
        info = Info(struct_size=ctypes.sizeof(Info))
        self._check(library.kda_plan_get_info(plan, info))
        self.isa = library.kda_isa_name(info.isa).decode()
        self.products = "bf16" if info.products == BF16 else "fp32"

    def _check(self, status):
        if status != 0:
            raise Failure(self._error.message.decode())

    def run(self):
        self._check(self._library.kda_run(self._plan, self._args, self._error))

    def close(self):
        self._library.kda_plan_destroy(self._plan)
        self._plan = None
