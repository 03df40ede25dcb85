"""Image files of one's own: folders of them, and lists."""
