# SPDX-License-Identifier: Apache-2.0
"""Files of tables: Parquet, Arrow and MDS. Rows are samples."""
