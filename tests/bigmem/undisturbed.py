"""A program that no thread of bigmem's may disturb."""

UNDISTURBED = """
import os, signal, sys, threading, time
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
while len(sys._current_frames()) < 2:  # ours begins beside it
    time.sleep(0.01)
assert not signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigwait({signal.SIGUSR1}).name, threading.active_count())
"""
"""Joins every thread that it sees, and waits for a signal that it has blocked in its own."""
