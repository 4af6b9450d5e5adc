"""A profile as one HTML file that opens from disk: verdicts, hot spots in the source, all SMs over time, the roofline.

The charts are Apache ECharts' (echarts.min.js from its npm package, 6.1.0, unchanged; LICENSE.echarts)."""
