"""Malformed safetensors files: one clear line, exit code 2, no output."""

import os
import random
import struct
import tempfile
import unittest

from kda import kda, kda_json, pack, problem, raw_file, split, write


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.input = os.path.join(self.folder.name, "in.safetensors")
        self.output = os.path.join(self.folder.name, "out.safetensors")

    def refused(self, *words, flags=()):
        process = kda("run", "--input", self.input, "--output", self.output, *flags)
        self.assertEqual(process.returncode, 2, process.stderr)
        self.assertEqual(len(process.stderr.splitlines()), 1, process.stderr)
        self.assertEqual(process.stdout, "")
        for word in words:
            self.assertIn(word, process.stderr)
        self.assertFalse(os.path.exists(self.output))

    def bytes(self, content):
        with open(self.input, "wb") as file:
            file.write(content)

    def test_file_faults(self):
        self.refused("cannot open")
        for content, word in ((b"", "0 bytes"), (b"1234567", "7 bytes"),
                              (struct.pack("<Q", 1), "header length 1"),
                              (struct.pack("<Q", 2 ** 64 - 1) + b"{}", "header length"),
                              (struct.pack("<Q", 2 ** 63) + b"{}", "header length"),
                              (struct.pack("<Q", 2) + b"{]", "not valid JSON"),
                              (struct.pack("<Q", 4) + b"\xff\xfe\x00{", "not valid JSON"),
                              (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
                              (struct.pack("<Q", 0), "not valid JSON")):
            with self.subTest(content=content):
                self.bytes(content)
                self.refused(word)
        os.remove(self.input)
        os.mkdir(self.input)
        self.refused("not a regular file")

    def test_header_faults(self):
        data = b"\0" * 16
        for header, word in (
                ({"q": 1}, "data_offsets"),
                ({"q": {"dtype": "F32", "shape": [4]}}, "data_offsets"),
                ({"q": {"dtype": 5, "shape": [4], "data_offsets": [0, 16]}}, "dtype"),
                ({"q": entry([4], 0, 16, "F77")}, "F77"),
                ({"q": entry([-4], 0, 16)}, "[-4]"),
                ({"q": entry([1.5], 0, 16)}, "[1.5]"),
                ({"q": entry(["4"], 0, 16)}, "whole numbers"),
                ({"q": entry([2 ** 62, 2 ** 62], 0, 16)}, "too large"),
                ({"q": entry([2 ** 64], 0, 16)}, "whole numbers"),
                ({"q": entry([5], 0, 16)}, "need 20"),
                ({"q": entry([4], 0, 12)}, "hold 12"),
                ({"q": entry([4], 16, 0)}, "[begin, end]"),
                ({"q": entry([4], -16, 0)}, "[begin, end]"),
                ({"q": {"dtype": "F32", "shape": [4], "data_offsets": [0]}}, "[begin, end]"),
                ({"q": entry([4], 4, 20)}, "past the 16"),
                ({"q": entry([2 ** 40], 0, 2 ** 42)}, "past the 16"),
                ({"q": entry([3], 0, 12), "k": entry([2], 8, 16)}, "overlap"),
                ({"q": entry([3], 0, 12)}, "belong to no tensor"),
                ({"q": entry([1], 0, 4), "k": entry([2], 8, 16)}, "belong to no tensor"),
                (b'{"q":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},'
                 b'"q":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}', "twice"),
                (b"[" * 100000, "nests more than 4 deep"),
                (b"[" * 3, "not valid JSON"),
                (b'{"q":{"dtype":"F32","shape":' + b"[" * 100000 + b"]" * 100000 +
                 b',"data_offsets":[0,0]}}', "nests more than 4 deep")):
            with self.subTest(header=str(header)[:80]):
                raw_file(self.input, header, data)
                self.refused(word)

    def test_tensor_faults_name_the_tensor(self):
        for name, change, words in (
                ("q", None, ("q:", "missing")),
                ("beta", None, ("beta:", "missing")),
                ("q", ("F64", (1, 8, 2, 4), [0.0] * 64), ("q", "F64")),
                ("q", ("I32", (1, 8, 2, 4), [0] * 64), ("q", "i32")),
                ("q", ("F32", (8, 2, 4), [0.0] * 64), ("q", "[8, 2, 4]")),
                ("q", ("F32", (1, 1, 8, 2, 4), [0.0] * 64), ("q", "5 dimensions")),
                ("k", ("F32", (1, 7, 2, 4), [0.0] * 56), ("k",)),
                ("cu_seqlens", ("I32", (2, 2), [0, 5, 5, 8]), ("cu_seqlens", "dimensions")),
                ("cu_seqlens", ("F32", (4,), [0.0, 5.0, 5.0, 8.0]), ("cu_seqlens", "F32")),
                ("cu_seqlens", ("I32", (4,), [0, 5, 4, 8]), ("cu_seqlens",)),
                ("cu_seqlens", ("I64", (4,), [0, 5, 5, 9]), ("cu_seqlens",)),
                ("cu_seqlens", ("I64", (0,), []), ("cu_seqlens",)),
                ("dt_bias", ("F32", (2,), [0.0] * 2), ("dt_bias",)),
                ("initial_state", ("F32", (2, 2, 4, 3), [0.0] * 48), ("initial_state",))):
            with self.subTest(name=name, change=str(change)[:60]):
                tensors = problem()
                if change is None:
                    del tensors[name]
                else:
                    tensors[name] = change
                write(self.input, tensors)
                self.refused(*words, flags=("--gate", "bounded"))

    def test_damaged_files_never_crash(self):
        write(self.input, problem((2,)))
        with open(self.input, "rb") as file:
            good = file.read()
        rng = random.Random(3)
        header = 8 + struct.unpack("<Q", good[:8])[0]
        for _ in range(150):
            damaged = bytearray(good)
            for _ in range(rng.randint(1, 3)):
                damaged[rng.randrange(header)] = rng.randrange(256)
            if rng.random() < 0.2:
                damaged = damaged[:rng.randrange(len(damaged))]
            self.bytes(bytes(damaged))
            process = kda("run", "--input", self.input, "--output", self.output, "--gate",
                          "bounded")
            self.assertIn(process.returncode, (0, 2), process.stderr)
            self.assertLessEqual(len(process.stderr.splitlines()), 3, process.stderr)

    def test_odd_header_length_is_read(self):
        # Data off its natural alignment, as a header without padding gives.
        tensors = problem((2,))
        header, data = {}, b""
        for name, (dtype, shape, values) in tensors.items():
            part = pack(dtype, values)
            header[name] = entry(list(shape), len(data), len(data) + len(part), dtype)
            data += part
        import json
        text = json.dumps(header).encode()
        outputs = []
        for spaces in range(3):
            raw_file(self.input, text + b" " * spaces, data)
            process = kda("run", "--input", self.input, "--output", self.output, "--gate",
                          "bounded")
            self.assertEqual(process.returncode, 0, process.stderr)
            with open(self.output, "rb") as file:
                outputs.append(file.read())
        self.assertEqual(outputs[0], outputs[1])
        self.assertEqual(outputs[0], outputs[2])

    def test_metadata_faults(self):
        for metadata, words in (
                ({"kda.gate": "hard"}, ("kda.gate", "'hard'", "log, bounded or softplus")),
                ({"kda.gate": ""}, ("kda.gate", "''")),
                ({"kda.gat": "log"}, ("kda.gat ", "not known", "kda.gate")),
                ({"kda.decode": "1"}, ("kda.decode", "'1'", "true or false")),
                ({"kda.scale": "inf"}, ("kda.scale", "'inf'", "finite")),
                ({"kda.scale": "1x"}, ("kda.scale", "'1x'")),
                ({"kda.lower_bound": "1", "kda.gate": "bounded"}, ("--lower-bound", "1", "to 0")),
                ({"kda.lower_bound": "-5"}, ("kda.lower_bound", "-5", "log gate")),
                ({"kda.lower_bound": "-5", "kda.gate": "softplus"}, ("kda.lower_bound", "softplus")),
                ({"kda.checkpoint_every": "0"}, ("kda.checkpoint_every", "'0'")),
                ({"kda.out_dtype": "int8"}, ("kda.out_dtype", "'int8'", "bf16")),
                ({"kda.state_layout": "k\nv"}, ("kda.state_layout", "'k v'")),
                ({"kda.gate": 1}, ("kda.gate", "not a string")),
                ([], ("__metadata__", "not an object"))):
            with self.subTest(metadata=metadata):
                write(self.input, problem((2,)), metadata)
                self.refused(*words)

    def test_metadata_of_others_is_left_alone(self):
        write(self.input, problem((2,)), {"format": "pt", "kdax": "1"})
        process = kda("run", "--input", self.input, "--output", self.output, "--gate", "bounded")
        self.assertEqual((process.returncode, process.stderr), (0, ""))

    def test_an_input_is_never_written_over(self):
        write(self.input, problem((2,)))
        with open(self.input, "rb") as file:
            before = file.read()
        link, hard = (os.path.join(self.folder.name, name) for name in ("link", "hard"))
        os.symlink(self.input, link)
        os.link(self.input, hard)
        other = os.path.join(self.folder.name, ".", "in.safetensors")
        for path in (self.input, other, link, hard):
            for command, option in (("run", "--output"), ("verify", "--save-input")):
                with self.subTest(path=path, command=command):
                    process = kda(command, "--input", self.input, option, path, "--gate", "bounded")
                    self.assertEqual(process.returncode, 2, process.stdout)
                    self.assertIn(f"{option}: {path} is the file that --input reads",
                                  process.stderr)
        with open(self.input, "rb") as file:
            self.assertEqual(file.read(), before)

    def test_a_saved_input_is_whole(self):
        # The pool, the slots and the rest of a problem, not only what is generated.
        tensors = problem((3, 2, 4))
        tensors["initial_state"] = ("F32", (5, 2, 4, 3), [0.25] * 120)
        tensors["slots"] = ("I32", (3,), [4, -1, 1])
        tensors["has_initial"] = ("I32", (3,), [1, 0, 0])
        tensors["checkpoint_offsets"] = ("I64", (4,), [0, 1, 1, 2])
        tensors["checkpoint_tokens"] = ("I64", (2,), [2, 3])
        write(self.input, tensors)
        flags = ("--gate", "softplus", "--beta-logits", "--qk-l2norm", "--scale", "-0.1")
        record = kda_json("verify", "--input", self.input, "--save-input", self.output, *flags)
        self.assertEqual(set(split(self.output)[0]), set(tensors))
        again = kda_json("verify", "--input", self.output)
        self.assertEqual(again["tensors"], record["tensors"])

    def test_output_that_cannot_be_written(self):
        write(self.input, problem((2,)))
        self.output = os.path.join(self.folder.name, "nowhere", "out.safetensors")
        self.refused("--output", "cannot write", flags=("--gate", "bounded"))


if __name__ == "__main__":
    unittest.main()
