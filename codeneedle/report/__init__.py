"""Reports: grids, tables, heatmaps and exports of stored records."""
