"""`python -m jaxtrain`: the same as the `jaxtrain` command."""

import sys

from jaxtrain.cli import main

if __name__ == "__main__":
    sys.exit(main())
