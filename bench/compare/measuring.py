"""What measurements need and Python's standard library lacks: quantiles, progress, processors."""

import os
import sys
import time


def quantile(values, q):
    """Linear between samples, as numpy's default and `kda bench` have it."""
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def summary(values):
    """(median, p10, p90)"""
    return tuple(quantile(values, q) for q in (0.5, 0.1, 0.9))


def human_time(ms):
    if ms < 1:
        return "%.1f us" % (ms * 1e3)
    return "%.3g ms" % ms if ms < 1e3 else "%.3g s" % (ms / 1e3)


def human_count(x):
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= size:
            return "%.3g %s" % (x / size, letter)
    return "%.3g" % x


class Progress:
    """One line on stderr of what goes on, from the third second on; as `kda bench` does it."""

    def __init__(self, task):
        self._task, self._terminal = task, sys.stderr.isatty()
        self._start = self._shown = time.monotonic()
        self._open = False

    def update(self, fraction, now):
        """`fraction` of all work that is done; `now`, what is being done, in a few words."""
        at = time.monotonic()
        elapsed = at - self._start
        if elapsed < 2 or at - self._shown < (0.2 if self._terminal else 5):
            return
        self._shown = at
        left = ""
        if fraction > 0.05:
            left = ", about %.0f s left" % (elapsed / fraction * (1 - fraction))
        line = "%s: %3.0f %%, %.0f s%s  %s" % (self._task, 100 * fraction, elapsed, left, now)
        self._open = self._terminal
        sys.stderr.write("\r\033[K" + line if self._terminal else line + "\n")
        sys.stderr.flush()

    def close(self):
        if self._open:
            sys.stderr.write("\r\033[K")
            self._open = False


def cpu_info():
    """(model name, set of feature flags)"""
    model, flags = "unknown", set()
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() == "model name" and model == "unknown":
                    model = value.strip()
                elif name.strip() == "flags" and not flags:
                    flags = set(value.split())
    except OSError:
        pass
    return model, flags


def processors():
    """Those this process may use, one of each physical core first."""
    first, siblings, cores = [], [], set()
    for cpu in sorted(os.sched_getaffinity(0)):
        path = "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list" % cpu
        try:
            with open(path) as file:
                core = file.read().strip()
        except OSError:
            core = "unknown %d" % cpu
        (siblings if core in cores else first).append(cpu)
        cores.add(core)
    return first + siblings


def available_memory():
    """Bytes that can be allocated without swapping; 0: unknown."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
