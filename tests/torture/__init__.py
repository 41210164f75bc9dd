"""Real Kubernetes, everything that can be killed is, and every client's history is checked: see __main__."""
