# SPDX-License-Identifier: Apache-2.0
"""Video and audio: decoding them by the clip, and what is known of a medium without decoding it."""
