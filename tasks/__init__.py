"""The first plugin: the zoo's own tasks, registered through the same door as a stranger's."""
