"""The sinker: objects of any resource, chosen in one cluster, kept equal in others. A worker like any user's."""
