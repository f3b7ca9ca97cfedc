"""Tar files: headers, names of members, finding all headers, scanning a shard, `.tar.idx`."""
