"""Random histories of a node: configs, names, plugins, lost files, kills, and pods that come and go."""
