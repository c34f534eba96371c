"""``python -m vmmcts.worker``; imported again, without running, by spawned children."""

import sys

from vmmcts.worker.main import main

if __name__ == "__main__":
    sys.exit(main())
