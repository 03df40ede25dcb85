"""Image files of one's own: folders of them, and lists."""

from jaxtrain.data.own.source import FileSource, csv_source, folder_source

__all__ = ["FileSource", "csv_source", "folder_source"]
