"""The local fleet: real Kubernetes control planes and Reclock's services, side by side on one machine."""
