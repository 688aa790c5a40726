"""Rights of a viewer to groups, shared views and alerts, and the people to whom a group can be assigned."""
