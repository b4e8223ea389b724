"""A batch of proofs on the workers of a Dask cluster.

`batch.ClusterBatch` is the client's part, `remote.prove` the worker's, `identity.KeyIdentity` what
both mean by the key. Needs ``distributed`` (the extra ``dask``).
"""
