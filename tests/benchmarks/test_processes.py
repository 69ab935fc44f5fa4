"""What a process cost, as the kernel says."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

from bench import processes


def burn(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_the_time_of_a_thread_that_ended_counts() -> None:
    before = processes.cpu_seconds([os.getpid()])
    thread = threading.Thread(target=burn, args=(0.03,))
    thread.start()
    thread.join()

    assert processes.cpu_seconds([os.getpid()]) - before >= 0.03


def test_the_time_of_a_child_that_ended_counts_to_the_clock_tick() -> None:
    before = processes.cpu_seconds([os.getpid()])
    code = "import time\nwhile time.process_time() < 0.1: pass"
    subprocess.run([sys.executable, "-c", code], check=True)

    assert processes.cpu_seconds([os.getpid()]) - before >= 0.08


def test_a_child_is_in_the_tree_and_has_memory() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in processes.tree(os.getpid())
        assert 0 < processes.pss(os.getpid()) < 10_000
    finally:
        child.communicate(b"\n")
