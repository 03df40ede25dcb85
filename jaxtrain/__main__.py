"""`python -m jaxtrain`: the same as the `jaxtrain` command."""

from jaxtrain.cli import entry

if __name__ == "__main__":
    entry()
