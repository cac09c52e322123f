"""What a project states of its graphs, in a file: docs/project-file.md has its language."""
