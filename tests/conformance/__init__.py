"""What a cluster answers to a fixed course of requests, compared between engines.

`scenarios` make the requests; `recorded/` holds what kube-apiserver 1.34.4 answered, normalised. tests/kube/test_engines.py
holds the real one to the records, tests/unit/test_sim_conformance.py the simulated one. Record anew:
`python -m tests.conformance.record <kubeconfig of a cluster without controllers>`.
"""
