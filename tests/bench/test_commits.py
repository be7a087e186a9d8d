"""scripts/compare_commits: verdicts, problems, arguments. Nothing is built or timed."""

import contextlib
import io
import unittest

from tools import load, refusal

commits = load("scripts/compare_commits")


class Judge(unittest.TestCase):
    def test_verdicts(self):
        for ratios, verdict in (
                ([1.0, 1.01, 0.99, 1.0, 1.0], "same"),
                ([1.04, 1.04, 1.04, 1.04, 1.04], "same"),  # within the limit
                ([1.2, 1.1, 1.08, 1.3, 1.2], "slower"),
                ([1.2, 0.9, 1.08, 1.3, 1.2], "slower"),  # three quarters of them are
                ([1.2, 0.9, 0.95, 1.3, 1.2], "unclear"),
                ([0.8, 0.85, 0.82, 1.4, 0.8], "faster")):
            self.assertEqual(commits.judge(ratios, 5), verdict, ratios)

    def test_limit(self):
        self.assertEqual(commits.judge([1.08] * 3, 5), "slower")
        self.assertEqual(commits.judge([1.08] * 3, 10), "same")


class Compare(unittest.TestCase):
    """With medians that are made up instead of measured."""

    def run_with(self, medians, **more):
        options = commits.parse_arguments(["--rounds", "3"])
        real, commits.medians_ms = commits.medians_ms, medians
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                slower = commits.compare(("base", "new"), {"a": [], "b": []}, ["avx2", "avx512"],
                                         options)
        finally:
            commits.medians_ms = real
        return slower, said.getvalue()

    def test_slower_is_named(self):
        def medians(kda, problem, isas, threads):
            return [2.0 if kda == "new" and isa == "avx512" else 1.0 for isa in isas]

        slower, said = self.run_with(medians)
        self.assertEqual(slower, ["a on avx512", "b on avx512"])
        self.assertEqual(said.count("  slower"), 2)
        self.assertEqual(said.count("  same"), 2)
        self.assertIn("geometric mean of the ratios: 1.414", said)

    def test_slower_once_is_not_enough(self):
        calls = []

        def medians(kda, problem, isas, threads):
            calls.append(kda)
            return [2.0 if kda == "new" and len(calls) <= 6 else 1.0 for _ in isas]

        slower, said = self.run_with(medians)
        self.assertEqual(slower, [])
        self.assertIn("unclear", said)

    def test_faster_once_is_not_enough(self):
        for enough in (False, True):
            calls = []

            def medians(kda, problem, isas, threads, calls=calls, enough=enough):
                calls.append(kda)
                return [2.0 if kda == "base" and (enough or len(calls) <= 6) else 1.0
                        for _ in isas]

            slower, said = self.run_with(medians)
            self.assertEqual((slower, "  faster" in said), ([], enough))

    def test_turns(self):
        calls = []

        def medians(kda, problem, isas, threads):
            calls.append(kda)
            return [1.0 for _ in isas]

        self.run_with(medians)
        self.assertEqual(calls[:6], ["base", "new", "new", "base", "base", "new"])


class Guard(unittest.TestCase):
    def test_problems(self):
        problems = commits.guard_problems()
        self.assertEqual(len(problems), 3)
        lengths = problems["ShareGPT, B = 64"][1].split(",")
        self.assertEqual(len(lengths), 64)
        self.assertTrue(all(4 <= int(length) <= 1024 for length in lengths))

    def test_isas_of_both(self):
        real = commits.available_isas
        commits.available_isas = {"base": ["baseline", "avx2"],
                                  "new": ["baseline", "avx2", "amx"]}.get
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                for arguments, isas in ((["--guard"], ["baseline", "avx2"]), ([], ["auto"]),
                                        (["--isa", "avx2"], ["avx2"])):
                    options = commits.parse_arguments(arguments)
                    self.assertEqual(commits.choose_isas(options, ("base", "new")), isas)
                self.assertIn("amx: not compared", said.getvalue())
                with self.assertRaisesRegex(SystemExit, "--isa: 'amx' is not one of"):
                    commits.choose_isas(commits.parse_arguments(["--isa", "amx"]),
                                        ("base", "new"))
        finally:
            commits.available_isas = real

    def test_refusals_name_the_argument(self):
        for arguments in (["--rounds", "2"], ["--limit", "0"], ["--threads", "0"]):
            code, said = refusal(commits.parse_arguments, *arguments)
            self.assertEqual(code, 2)
            self.assertIn(arguments[0], said)


if __name__ == "__main__":
    unittest.main()
