"""The one exception that users are meant to read."""


class UserError(Exception):
    """Bad input: the message names the file, record or flag and says what to do about it.

    The command line prints it as one line, ``error: ...``, and exits with status 2.
    """
