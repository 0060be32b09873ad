"""Work for the tests of `processes`, in a separate module because the workers import it."""

import os
import signal

from rn50lib.errors import UserError


def prepare(settings):
    """Return a function that does what the task says."""

    def work(task):
        if task == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if task == "exit":
            os._exit(3)
        if task == "user error":
            raise UserError("this is wrong: do that")
        if task == "full":
            raise OSError(28, "No space left on device", "/some/file")
        if task == "bug":
            raise ZeroDivisionError
        if task == "print":
            print("noise of a library")
        return [settings["name"], task, os.getpid()]

    return work
