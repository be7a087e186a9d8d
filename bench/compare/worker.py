"""One side of a comparison in a process of its own; compare starts it and speaks to it.

Requests and replies are lines of JSON on stdin and stdout:

    open     side, settings, cpus, tokens, sequences, heads, gate, seed -> version, digests
    prepare  lengths of the sequences -> ran, isa, products, error_o, error_state, limit, once_ms:
             ran once on poisoned outputs and checked against the fp64 recurrence, then warmed up
    run      warm, count -> ms: `count` timed runs after `warm` others

A reply may be preceded by lines {"progress": text}. {"failed": text} is an answer too.
"""

import ctypes
import json
import os
import signal
import sys
import time
import traceback

PR_SET_PDEATHSIG = 1


def die_with_parent():
    """The parent stops this process between its turns; should the parent be killed then, nobody
    would be left to continue it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def cpu_time(task):
    with open("/proc/self/task/%d/stat" % task) as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def pin_threads(cpus, busy):
    """This thread to the first processor and the busiest others to one of the rest each; which
    they are is known after `busy` has run for a moment. The same for every side, whatever pool it
    has."""
    if len(cpus) < 2:
        return
    mine = os.getpid()
    tasks = [int(name) for name in os.listdir("/proc/self/task") if int(name) != mine]
    before = {task: cpu_time(task) for task in tasks}
    end = time.monotonic() + 0.1  # ten ticks of the clock that cpu_time reads
    while time.monotonic() < end:
        busy()
    tasks.sort(key=lambda task: before[task] - cpu_time(task))
    os.sched_setaffinity(mine, {cpus[0]})
    for task, cpu in zip(tasks, cpus[1:]):
        os.sched_setaffinity(task, {cpu})


class Worker:
    def __init__(self, reply):
        self._reply = reply

    def progress(self, text):
        self._reply({"progress": text})

    def open(self, side, settings, cpus, tokens, sequences, heads, gate, seed):
        self._cpus = cpus
        os.sched_setaffinity(0, cpus)  # threads that are started from here on inherit it
        import problem
        import sides
        self._problem = problem
        inputs = problem.Inputs(tokens, sequences, heads, gate, seed, self.progress)
        self._side = sides.SIDES[side](settings, inputs, self.progress)
        return {"version": self._side.version, "digests": inputs.digests}

    def prepare(self, lengths):
        side, batch = self._side, self._problem.Batch(lengths)
        os.sched_setaffinity(0, self._cpus)  # all of them again, for the threads of a new plan
        side.prepare(batch)
        side.run()
        if hasattr(side, "check"):
            errors = side.check(), 0.0
        else:
            errors = self._verify(batch)
        pin_threads(self._cpus, side.run)
        side.run()
        begin = time.perf_counter_ns()
        side.run()
        once = (time.perf_counter_ns() - begin) / 1e6
        return {"ran": side.ran, "isa": side.isa, "products": side.products,
                "error_o": errors[0], "error_state": errors[1],
                "limit": side.limit, "once_ms": once}

    def _verify(self, batch):
        """The errors of o and of the states; of sequences of different lengths the largest."""
        problem, side = self._problem, self._side
        errors = []
        for chosen in problem.chosen_heads(batch, side.inputs.heads):
            x = side.given(*chosen)
            o, state = problem.recurrence(x["q"], x["k"], x["v"], x["g"], x["beta"], x["state"],
                                          self.progress)
            got_o, got_state = side.results(*chosen)
            errors.append((problem.relative_error(got_o, o),
                           problem.relative_error(got_state, state)))
        return tuple(map(max, zip(*errors)))

    def run(self, warm, count):
        run, times = self._side.run, []
        for _ in range(warm):
            run()
        for _ in range(count):
            begin = time.perf_counter_ns()
            run()
            times.append((time.perf_counter_ns() - begin) / 1e6)
        return {"ms": times}


def main():
    die_with_parent()
    # What a library prints must not get between the replies.
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def reply(message):
        replies.write(json.dumps(message) + "\n")

    worker = Worker(reply)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply(getattr(worker, request.pop("do"))(**request))
        except MemoryError:
            reply({"failed": "not enough memory; fewer --heads or --tokens fit"})
        except Exception as error:  # pylint: disable=broad-except
            if type(error).__name__ != "Refused":
                traceback.print_exc()
            reply({"failed": "%s" % error})


main()
