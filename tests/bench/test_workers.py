"""bench/compare/workers.py with programs that stand in for worker.py: turns, stops, deaths."""

import sys
import unittest

import tools  # noqa: F401  (the path of the modules below)

import workers

# Answers each request with its own fields; spins in a second thread all the time, as a pool does.
ECHO = """
import json, sys, threading
def spin():
    while True: pass
threading.Thread(target=spin, daemon=True).start()
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "die": sys.exit(3)
    print(json.dumps({"progress": "working"}), flush=True)
    print(json.dumps({"failed": "no"} if request["do"] == "fail" else request), flush=True)
"""


def state_and_ticks(pid):
    with open("/proc/%d/stat" % pid) as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return fields[0], int(fields[11]) + int(fields[12])


class Turns(unittest.TestCase):
    def setUp(self):
        self.said = []
        self.worker = workers.Worker("libkda", "ours", self.said.append,
                                     [sys.executable, "-c", ECHO])
        self.addCleanup(self.worker.close)

    def test_answers(self):
        for value in range(20):
            self.assertEqual(self.worker.ask("run", value=value), {"do": "run", "value": value})
        self.assertEqual(self.said, ["ours: working"] * 20)

    def test_still_between_turns(self):
        self.worker.ask("run")
        state, ticks = state_and_ticks(self.worker.pid)
        self.assertEqual(state, "T")
        total = sum(range(3000000))  # a while, for its thread to spin in if it could
        self.assertGreater(total, 0)
        self.assertEqual(state_and_ticks(self.worker.pid), ("T", ticks))
        self.worker.ask("run")
        self.assertEqual(state_and_ticks(self.worker.pid)[0], "T")

    def test_refusal_and_death_are_told(self):
        with self.assertRaisesRegex(workers.Failed, "ours: no"):
            self.worker.ask("fail")
        self.worker.ask("run")  # is still there
        with self.assertRaisesRegex(workers.Failed, "ours: its process died .exit status 3"):
            self.worker.ask("die")

    def test_too_many_threads(self):
        with self.assertRaisesRegex(workers.Failed, "--threads: 5000 is more than"):
            workers.processors_for(5000)
        self.assertEqual(len(workers.processors_for(1)), 1)


if __name__ == "__main__":
    unittest.main()
