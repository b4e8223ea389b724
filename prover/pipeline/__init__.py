"""From files to checked proofs: what the command line runs.

* `single.prove`: one proof, checked.
* `batch.Batch`: files in, files out, with figures; over
* `engine.Engine`: many circuits of one key. `ahead.Ahead` synthesises their
  `assignment.Assignment` on a thread of its own within a budget of bytes, a worker for each backend
  proves them, and each is released in the way that was asked for::

      engine = Engine(key, backends=[get_backend("cpu")], vectors=X, assignments=Y,
                      mode="seed", release="early", ahead=1 << 30)
      engine.run(10, witness_of, finish, advance)
"""
