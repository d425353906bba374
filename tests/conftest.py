"""What all tests share."""

import signal

from hypothesis import settings

# How long an example takes says more about the machine than about the code.
settings.register_profile("draftwire", deadline=None)
settings.load_profile("draftwire")

# A shell starts what it runs in the background deaf to Ctrl-C, and so would be what we start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
