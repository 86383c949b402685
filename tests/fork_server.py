"""Fast start of Python processes: forks of a process that has already imported the libraries.

Importing torch and transformers takes about 12 CPU seconds, more than most tests. Run as a program, this file imports
what `LIBRARIES` lists and forks a process for each request; nothing of this project is imported there. One server
serves all processes of a run of pytest.

Checks of what a cold start imports use `subprocess` instead, because a forked process could not fail them.
"""

import atexit
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# What a child finds imported. "torch": everything heavy that does not import transformers.
LIBRARIES = {
    "torch": ("torch", "torch._dynamo", "torchvision", "timm", "accelerate", "datasets"),
    "transformers": (
        "transformers.models.auto.modeling_auto",
        "transformers.models.auto.processing_auto",
        "transformers.models.gpt2.modeling_gpt2",
        "transformers.models.vit.modeling_vit",
        "transformers.pipelines",
        "transformers.trainer_seq2seq",
        "peft",
    ),
}
PAUSE = 0.02  # seconds between two looks at a child
PATIENCE = 300.0  # seconds until a server that has not imported anything must listen
spent = {"children": 0.0, "servers": 0.0}  # CPU seconds that this process has caused in others


class Child:
    """A process forked by the server.

    Args:
        connection: socket to the server, which closes it when the process has ended.
        arguments: arguments of the interpreter, for errors.
    """

    def __init__(self, connection: socket.socket, arguments: Sequence[str]) -> None:
        self.lines = connection.makefile("r")
        self.connection, self.args = connection, arguments
        try:
            started = json.loads(self.lines.readline())
        except (ConnectionError, ValueError) as error:
            raise RuntimeError("The fork server ended; see `fork_server/log.txt` in the run's folder.") from error
        self.pid: int = started["pid"]
        self.seconds_of_imports: float = started["seconds_of_imports"]
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while the process runs."""
        if self.returncode is None and select.select([self.connection], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """Wait until the process ends, and return its exit status."""
        if self.returncode is None:
            ended = json.loads(self.lines.readline())
            self.returncode = ended["returncode"]
            spent["children"] += ended["cpu_seconds"]
            self.connection.close()
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


class ForkServer:
    """Client of the fork server, which the first client of a test run starts.

    Args:
        folder: folder of the run, which its processes share.
        run: process that the server ends with.
    """

    def __init__(self, folder: Path, run: int) -> None:
        self.folder, self.run_pid = folder / "fork_server", run
        self.server: subprocess.Popen | None = None

    def connect(self, libraries: str) -> socket.socket:
        """Connect to the server with the imported `libraries`."""
        address = self.folder / libraries
        if not address.exists():
            try:
                self.folder.mkdir()
            except FileExistsError:  # another process starts it
                pass
            else:
                command = [sys.executable, "-P", __file__, str(self.folder), str(self.run_pid)]
                own = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHON"))}
                own |= {"HF_HOME": str(self.folder / "home"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
                with open(self.folder / "log.txt", "w") as log:
                    self.server = subprocess.Popen(
                        command, env=own, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                    )
        until = time.monotonic() + PATIENCE
        while not address.exists():
            if (self.server is not None and self.server.poll() is not None) or time.monotonic() > until:
                raise RuntimeError(f"The fork server did not start; see {self.folder / 'log.txt'}.")
            time.sleep(PAUSE)
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(address))
        return connection

    def start(
        self,
        arguments: Sequence[Any],
        stdout: Any,
        stderr: Any,
        cwd: Any = None,
        env: Mapping[str, str] | None = None,
        libraries: str = "transformers",
    ) -> Any:
        """Start a process like `subprocess.Popen`, without waiting for its end.

        Args:
            arguments: of the interpreter: `-c CODE ...`, `-m MODULE ...` or `SCRIPT ...`, with no other option.
            stdout: open file.
            stderr: open file.
            cwd: working directory; default: this process's.
            env: all environment variables; default: this process's.
            libraries: key of `LIBRARIES`; what the process finds imported.

        Returns:
            A process with `poll`, `wait` and `terminate`; that of `subprocess` where the system is not Linux.
        """
        arguments = [str(argument) for argument in arguments]
        folder = str(cwd or os.getcwd())
        environment = dict(os.environ if env is None else env)
        if sys.platform != "linux":  # forks of processes with loaded libraries are not safe on macOS
            return subprocess.Popen(
                [sys.executable, *arguments], cwd=folder, env=environment, stdout=stdout, stderr=stderr
            )
        if arguments[0].startswith("-") and arguments[0] not in ("-c", "-m"):
            raise ValueError(f"expected -c, -m or a script, received {arguments[0]}; use `subprocess`")
        connection = self.connect(libraries)
        with tempfile.TemporaryFile("w+") as request:
            json.dump({"arguments": arguments, "folder": folder, "environment": environment}, request)
            request.flush()
            request.seek(0)
            socket.send_fds(connection, [b"."], [request.fileno(), stdout.fileno(), stderr.fileno()])
            child = Child(connection, arguments)
        try:  # the imports are counted once a run
            (self.folder / f"{libraries}.counted").touch(exist_ok=False)
            spent["servers"] += child.seconds_of_imports
        except FileExistsError:
            pass
        return child

    def run(
        self,
        arguments: Sequence[Any],
        cwd: Any = None,
        env: Mapping[str, str] | None = None,
        libraries: str = "transformers",
        check: bool = False,
    ) -> subprocess.CompletedProcess:
        """Run a process to its end like `subprocess.run`; return status and output, see `start`."""
        with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
            child = self.start(arguments, stdout, stderr, cwd, env, libraries)
            status = child.wait()
            texts = []
            for file in (stdout, stderr):
                file.seek(0)
                texts.append(file.read())
        done = subprocess.CompletedProcess(arguments, status, *texts)
        if check and status:
            raise RuntimeError(f"{arguments} ended with {status}:\n{texts[1]}")
        return done


def is_alive(pid: int) -> bool:
    """Return whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def answer(connection: socket.socket, seconds_of_imports: float) -> dict[str, Any] | None:
    """Fork a process for a request; return the request in the child, None in the server."""
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    pid = os.fork()
    if not pid:
        connection.close()
        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), *files[1:])):
            os.dup2(file, number)
            os.close(file)
        with open(files[0]) as request:
            return json.load(request)
    send = connection.makefile("w")
    send.write(json.dumps({"pid": pid, "seconds_of_imports": seconds_of_imports}) + "\n")
    send.flush()
    while True:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            break
        if select.select([connection], [], [], PAUSE)[0]:  # whoever waited is gone
            os.kill(pid, signal.SIGKILL)
    seconds = usage.ru_utime + usage.ru_stime
    send.write(json.dumps({"returncode": os.waitstatus_to_exitcode(status), "cpu_seconds": seconds}) + "\n")
    send.flush()
    return None


def serve(listener: socket.socket, run: int, seconds_of_imports: float) -> dict[str, Any]:
    """Answer requests until the test run ends; return in forked children only."""
    gc.freeze()  # or the first collection of every process would copy all pages of what is imported
    while is_alive(run):
        ready = select.select([listener], [], [], 1.0)[0]
        while True:  # processes that have ended
            try:
                if not os.waitpid(-1, os.WNOHANG)[0]:
                    break
            except ChildProcessError:
                break
        if ready:
            connection, _ = listener.accept()
            if os.fork():
                connection.close()
                continue
            listener.close()
            request = answer(connection, seconds_of_imports)
            if request is None:
                os._exit(0)
            return request
    os._exit(0)


def read_variables_again() -> None:
    """Make libraries read environment variables again that they read at import."""
    for name in ("huggingface_hub.constants", "datasets.config"):
        importlib.reload(importlib.import_module(name))
    from huggingface_hub import constants, hf_api

    hf_api.api.endpoint = constants.ENDPOINT
    modules = os.environ.get("HF_MODULES_CACHE", os.path.join(constants.HF_HOME, "modules"))
    for name in ("transformers.utils.hub", "transformers.utils", "transformers.dynamic_module_utils"):
        if name in sys.modules:
            sys.modules[name].HF_MODULES_CACHE = modules  # type: ignore[attr-defined]


def run_program(request: dict[str, Any]) -> None:
    """Run the requested program as the Python interpreter would."""
    import random

    import numpy

    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    read_variables_again()
    random.seed()
    numpy.random.seed()
    kind, *rest = request["arguments"]
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if kind == "-c":
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        sys.argv[:] = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    elif kind == "-m":
        sys.argv[:] = rest
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = [kind, *rest]
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))
        runpy.run_path(kind, run_name="__main__")


def main(folder: str, run: int) -> dict[str, Any]:
    """Import the libraries and serve requests; return in forked children only."""
    if not is_alive(run):
        raise SystemExit("The run has ended.")
    request = None
    listeners = {}
    for libraries in LIBRARIES:
        listeners[libraries] = socket.socket(socket.AF_UNIX)
        listeners[libraries].bind(f"{folder}/{libraries}.new")
        listeners[libraries].listen(64)
        os.rename(f"{folder}/{libraries}.new", f"{folder}/{libraries}")  # whoever sees it can connect
    for libraries, modules in LIBRARIES.items():
        for module in modules:
            if importlib.util.find_spec(module.partition(".")[0]) is not None:  # not all extras are everywhere
                importlib.import_module(module)
        last = libraries == list(LIBRARIES)[-1]
        if last or os.fork():
            if libraries == "torch" and "transformers" in sys.modules:
                raise RuntimeError("one of these libraries imports transformers: " + ", ".join(modules))
            for other in set(LIBRARIES) - {libraries}:
                listeners[other].close()
            request = serve(listeners[libraries], run, time.process_time())
            break
    assert request is not None
    return request


def run_and_end(request: dict[str, Any]) -> None:
    """Run a program and exit without cleaning up the imported libraries."""
    status = 0
    try:
        run_program(request)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:
        status = 1
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


if __name__ == "__main__":
    run_and_end(main(sys.argv[1], int(sys.argv[2])))
