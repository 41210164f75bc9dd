"""Everything that runs Reclock: images, manifests, and the local fleet."""
