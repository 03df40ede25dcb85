"""Several processes that train or evaluate together: see `peers`.

JAX's coordination service notices by heartbeats that a process is lost, but what it makes of that
is no end for a run. With jax 0.10.2:

- when process 0 dies, or some process never starts, the client ends the others in C++ with SIGABRT
  (status 134) and 20 lines of a stack that name no process;
- a `missed_heartbeat_callback` of one's own ends with `std::bad_cast` before it is called;
- `jax_enable_recoverability` changes nothing of that;
- a process that fails is to the others the same as one that was lost: nobody hears why.

So the processes have connections of their own (a `group`: process 0 is its `coordinator`, all
others are `member`s) for signs of life, for what they agree on and for the words of whoever fails.
JAX's service runs as ever (`coordination`), but with more patience, and its clients reach it
through a `relay` in their own process, so that they do not notice when it is gone.
"""
