// The page's own part: a view of each profile, which fills its tables and gives ECharts what it draws.
function view(data, root, alone) {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const element = (tag, text, kind) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  const byId = (id) => root.querySelector("#" + id);
  const sum = (us) => Object.values(us).reduce((a, b) => a + b, 0);
  const figure = (value) => (value >= 0.005 ? value.toFixed(2) : "");
  const size = (bytes) => (bytes >= 1e5 ? (bytes / 1e6).toFixed(2) + " MB" : (bytes / 1e3).toFixed(2) + " KB");
  const between = (of) => of.us_corrected.toFixed(2) + " (" + of.us_interval.map((x) => x.toFixed(2)).join(" to ") + ")";

  if (!alone) byId("title").textContent = data.title;
  byId("basis").textContent = data.basis;
  data.facts.forEach((fact) => byId("facts").append(element("li", fact)));

  // -- tables: columns are [name, value of a row, whether it is text]; a head sorts
  function table(place, columns, rows, onClick) {
    const made = element("table"), head = element("thead"), body = element("tbody"), line = element("tr");
    const fill = (sorted) => {
      body.replaceChildren(...sorted.map((row) => {
        const tr = element("tr", undefined, onClick ? "link" : "");
        columns.forEach(([, value, text]) => {
          const shown = value(row);
          tr.append(element("td", typeof shown === "number" ? figure(shown) : shown, text ? "text" : ""));
        });
        if (onClick) tr.onclick = () => onClick(row);
        return tr;
      }));
    };
    columns.forEach(([name, value, text]) => {
      const th = element("th", name, text ? "text" : "");
      const order = text ? (a, b) => String(value(a)).localeCompare(String(value(b))) : (a, b) => value(b) - value(a);
      th.onclick = () => fill([...rows].sort(order));
      line.append(th);
    });
    head.append(line);
    made.append(head, body);
    byId(place).append(made);
    fill(rows);
  }
  table("launches", [
    ["launch", (x) => String(x.launch)], ["kernel", (x) => x.title + (x.pdl ? ", dependent" : ""), true],
    ["us (may be)", between], ["starts", (x) => x.start_us], ["ends", (x) => x.end_us],
  ], data.launches);
  table("kernels", [
    ["kernel", (x) => x.title, true], ["us (may be)", between], ["grid", (x) => x.grid.join(" x ")],
    ["threads", (x) => String(x.threads)], ["registers", (x) => String(x.registers ?? "?")],
    ["stack B", (x) => String(x.stack_bytes ?? "?")], ["shared", (x) => size(x.shared_bytes)],
    ["TMEM columns", (x) => String(x.tensor_memory_columns)],
    ["CTAs an SM", (x) => x.ctas_per_sm + ", by " + x.limited_by],
    ["moved", (x) => Object.entries(x.moved_bytes).filter((m) => m[1]).map((m) => m[0] + " " + size(m[1])).join(", "), true],
    ["HBM", (x) => size(x.hbm_bytes)], ["L2 hits", (x) => (100 * x.l2_hits).toFixed(0) + " %"],
    ["floors us", (x) => Object.entries(x.floors_us).map((m) => m[0] + " " + m[1].toFixed(2)).join(", "), true],
  ], data.kernels);

  const totals = {};
  data.lines.forEach((row) => Object.entries(row.us).forEach(([why, us]) => (totals[why] = (totals[why] || 0) + us)));
  const reasons = Object.keys(totals).sort((a, b) => totals[b] - totals[a]).slice(0, 8);
  const all = sum(totals) || 1;
  table("hot", [
    ["line", (x) => x.shown, true], ["% of time", (x) => 100 * sum(x.us) / all], ["us", (x) => sum(x.us)],
    ["accesses", (x) => x.spread, true], ...reasons.map((why) => [why, (x) => x.us[why] || 0]),
  ], data.lines, (row) => { show(row); mark(row.shown); });

  // -- source beside PTX
  const ofLine = {}; // file:line -> time of all that it calls, too
  data.lines.forEach((x) => new Set(x.calls.map((call) => call.join(":"))).forEach((line) => {
    const us = (ofLine[line] = ofLine[line] || {});
    Object.entries(x.us).forEach(([why, time]) => (us[why] = (us[why] || 0) + time));
  }));
  const most = Math.max(...Object.values(ofLine).map(sum), 1e-9);
  function row(number, text, us, marked, first) {
    const div = element("div", undefined, marked ? (first ? "marked first" : "marked") : ""), time = us ? sum(us) : 0;
    const share = element("span", time ? (100 * time / all).toFixed(1) + " %" : "", "share");
    share.style.setProperty("--of", 100 * Math.min(1, time / most) + "%");
    if (us) div.title = Object.entries(us).map(([why, x]) => why + " " + x.toFixed(2) + " us").join("\n");
    div.append(share, element("span", number), document.createTextNode(text));
    return div;
  }
  function reveal(place) {
    const found = place.querySelector(".first") || place.querySelector(".marked");
    if (found) place.scrollTop = found.offsetTop - place.offsetTop - place.clientHeight / 3;
  }
  function show(entry) {
    const [file] = entry.calls[entry.calls.length - 1], wanted = new Set(entry.ptx);
    const own = entry.calls.filter((call) => call[0] === file).map((call) => call[1]), marked = new Set(own);
    byId("file").textContent = file === "PTX" ? "Source: no line info" : entry.shown;
    const text = data.sources[file] || [];
    byId("source").replaceChildren(...text.map((shown, i) => row(i + 1, shown, ofLine[file + ":" + (i + 1)],
      marked.has(i + 1), own[0] === i + 1)));
    if (!text.length) byId("source").append(element("div", "its text was not found"));
    byId("ptx").replaceChildren(...data.ptx.map(([, number, shown, , us]) => row(number, shown, us, wanted.has(number))));
    reveal(byId("source"));
    reveal(byId("ptx"));
  }
  data.verdicts.forEach((verdict) => {
    const li = element("li", verdict.text), entry = data.lines.find((x) => x.shown === verdict.shown);
    if (entry) {
      const a = element("a", " (" + verdict.shown + ")");
      a.onclick = () => { show(entry); mark(entry.shown); byId("file").scrollIntoView(); };
      li.append(a);
    }
    byId("verdicts").append(li);
  });
  if (data.lines.length) show(data.lines[0]);

  // -- charts
  const chart = (id) => {
    const made = echarts.init(byId(id), dark ? "dark" : null, { renderer: "canvas" });
    addEventListener("resize", () => made.resize());
    return made;
  };
  const bar = (height) => (params, api) => {
    const start = api.coord([api.value(1), api.value(0)]), end = api.coord([api.value(2), api.value(0)]);
    const tall = Math.max(1, api.size([0, 1])[1] * height);
    const clip = params.coordSys;
    const shape = echarts.graphic.clipRectByRect(
      { x: start[0], y: start[1] - tall / 2, width: Math.max(0.5, end[0] - start[0]), height: tall },
      { x: clip.x, y: clip.y, width: clip.width, height: clip.height });
    return shape && { type: "rect", shape, style: { fill: api.visual("color") } };
  };
  const zoom = [
    { type: "slider", xAxisIndex: 0, filterMode: "weakFilter", bottom: 4, height: 18 },
    { type: "inside", xAxisIndex: 0, filterMode: "weakFilter" },
  ];
  const map = chart("map"), step = data.map.us / data.map.bins;
  map.setOption({
    backgroundColor: "transparent", animation: false, legend: { type: "scroll", top: 0 },
    grid: { left: 46, right: 12, top: 34, bottom: 56 }, dataZoom: zoom,
    tooltip: { formatter: (p) => "SM " + p.value[0] + ": " + p.seriesName + "<br>" + p.value[1].toFixed(2) + " to "
      + p.value[2].toFixed(2) + " us" },
    xAxis: { type: "value", min: 0, max: data.map.us, axisLabel: { formatter: (x) => x.toFixed(1) + " us" } },
    yAxis: { type: "value", min: -0.5, max: data.sms - 0.5, inverse: true, name: "SM", minInterval: 1,
      axisLabel: { formatter: (x) => (Number.isInteger(x) ? x : "") } },
    series: data.map.names.map((name, state) => ({
      name, type: "custom", progressive: 0, renderItem: bar(1), itemStyle: { color: data.map.colours[state] },
      encode: { x: [1, 2], y: 0 },
      data: data.map.runs.filter((run) => run[3] === state).map((run) => [run[0], run[1] * step, (run[1] + run[2]) * step]),
    })).filter((series) => series.data.length),
  });
  // from a track to another at one time, where a wait ends: [track, time, track of the wait, text]
  const arrow = (params, api) => {
    const [x, from] = api.coord([api.value(1), api.value(0)]), to = api.coord([api.value(1), api.value(2)])[1];
    const clip = params.coordSys, point = to > from ? -6 : 6, colour = api.visual("color");
    if (x < clip.x || x > clip.x + clip.width) return null;
    return { type: "group", children: [
      { type: "line", shape: { x1: x, y1: from, x2: x, y2: to }, style: { stroke: colour, lineWidth: 1 } },
      { type: "polygon", shape: { points: [[x, to], [x - 3, to + point], [x + 3, to + point]] }, style: { fill: colour } },
    ] };
  };
  const { texts } = data.spans; // all but the times, and the SM at the end, are numbers of texts
  const decoded = (x) => [texts[x[0]], x[1], x[2], ...x.slice(3, 7).map((text) => texts[text]), ...x.slice(7)];
  const sms = Object.keys(data.spans.sms).map(Number);
  let sm = sms[0], picked = ""; // the SM that is shown, and the line whose waits are marked
  const detail = chart("detail");
  const colours = ["#9aa4b1", "#f4a259", "#2a9d3a", "#3b6ea5", "#8e6bbf", "#d1495b", "#4bb3c3", "#b58900"];
  function pick(wanted) {
    sm = wanted;
    const near = sms.reduce((a, b) => (Math.abs(b - sm) < Math.abs(a - sm) ? b : a), sms[0]);
    const rows = (data.spans.sms[near] || []).map(decoded), tracks = [...new Set(rows.map((x) => x[0]))].sort();
    const kind = (x) => (x[0].startsWith("TMA") ? x[0] : x[3]);
    const kinds = [...new Set(rows.map(kind))].sort((a, b) => (b === "alive") - (a === "alive"));
    const told = (x) => x[3] + (x[4] ? " at " + x[4] : "") + (x[5] ? "<br>ended by " + x[5] + " at " + x[6]
      + (x[7] === near ? "" : ", SM " + x[7]) : "");
    const arrivals = rows.filter((x) => x[5] && x[7] === near && x[5] !== x[0] && tracks.includes(x[5]))
      .map((x) => [tracks.indexOf(x[5]), x[2], tracks.indexOf(x[0]), told(x)]);
    const left = sms.length < data.sms ? " (of those that are kept: " + sms.length + " of " + data.sms + ")" : "";
    byId("detailtitle").textContent = "SM " + near + ": warps and units" + left;
    byId("detail").style.height = 120 + 26 * tracks.length + "px";
    detail.resize();
    detail.setOption({
      backgroundColor: "transparent", animation: false, legend: { type: "scroll", top: 0 }, dataZoom: zoom,
      grid: { left: 8, right: 12, top: 34, bottom: 56, containLabel: true },
      tooltip: { formatter: (p) => tracks[p.value[0]] + "<br>" + p.value[3] + "<br>" + p.value[1].toFixed(3)
        + (p.seriesName === "arrivals" ? "" : " to " + p.value[2].toFixed(3)) + " us" },
      xAxis: { type: "value", min: 0, max: data.map.us, axisLabel: { formatter: (x) => x.toFixed(1) + " us" } },
      yAxis: { type: "category", data: tracks, inverse: true },
      series: [
        ...kinds.map((name, i) => ({
          name, type: "custom", progressive: 0, renderItem: bar(name === "alive" ? 0.8 : 0.6),
          itemStyle: { color: colours[i % colours.length] }, encode: { x: [1, 2], y: 0 },
          data: rows.filter((x) => kind(x) === name).map((x) => [tracks.indexOf(x[0]), x[1], x[2], told(x)]),
        })),
        { name: "the line above", type: "custom", renderItem: bar(0.25), itemStyle: { color: dark ? "#fff" : "#000" },
          encode: { x: [1, 2], y: 0 }, data: rows.filter((x) => x[4] && x[4] === picked)
            .map((x) => [tracks.indexOf(x[0]), x[1], x[2], told(x)]) },
        { name: "arrivals", type: "custom", renderItem: arrow, itemStyle: { color: dark ? "#e4e6ea" : "#1c1e21" },
          encode: { x: 1, y: [0, 2] }, data: arrivals },
      ].filter((series) => series.data.length),
    }, true);
  }
  map.on("click", (p) => pick(p.value[0]));
  function mark(line) { // its waits in the timeline
    picked = line;
    if (sms.length) pick(sm);
  }
  mark(data.lines.length ? data.lines[0].shown : "");

  const points = data.kernels.filter((x) => x.flops && x.hbm_bytes && x.floors_us["tensor cores"]);
  if (!points.length) byId("roofline").replaceWith(element("p", "no MMAs, or no traffic with HBM: see the floors above"));
  else {
    const peak = Math.max(...points.map((x) => x.flops / x.floors_us["tensor cores"] / 1e6)), ridge = peak / data.peak;
    const intensity = (x) => x.flops / x.hbm_bytes, low = Math.min(ridge, ...points.map(intensity)) / 4;
    const high = Math.max(ridge, ...points.map(intensity)) * 4;
    chart("roofline").setOption({
      backgroundColor: "transparent", grid: { left: 64, right: 24, top: 24, bottom: 48 },
      tooltip: { formatter: (p) => p.seriesName + "<br>" + p.value.map((x) => x.toFixed(1)).join(" FLOP/B, ") + " TFLOP/s" },
      xAxis: { type: "log", name: "FLOP per byte of HBM", nameLocation: "middle", nameGap: 28, min: low, max: high,
        axisLabel: { formatter: (x) => x.toPrecision(2) } },
      yAxis: { type: "log", name: "TFLOP/s", axisLabel: { formatter: (x) => x.toPrecision(2) } },
      series: [
        { name: "roof", type: "line", showSymbol: true, data: [[low, low * data.peak], [ridge, peak], [high, peak]] },
        ...points.map((x) => ({ name: x.title, type: "scatter", symbolSize: 14, data: [[intensity(x), x.flops / x.us / 1e6]] })),
      ],
    });
  }
}

(() => {
  const { views, compared } = JSON.parse(document.getElementById("data").textContent);
  const titles = views.map((one) => one.title).join(" and ");
  document.getElementById("heading").textContent = titles + ": modelled, not measured";
  document.title = titles + ": profile";
  document.body.style.setProperty("--views", views.length);
  if (compared) {
    const made = document.createElement("table"), place = document.getElementById("compared");
    compared.rows.forEach((row) => {
      const tr = made.insertRow();
      row.forEach((cell, at) => { const td = tr.insertCell(); td.textContent = cell; if (!at) td.className = "text"; });
    });
    const said = document.createElement("p");
    said.textContent = compared.said;
    place.append(said, made);
  }
  views.forEach((data) => {
    const root = document.createElement("section");
    root.append(document.querySelector("template").content.cloneNode(true));
    document.querySelector("main").append(root);
    view(data, root, views.length === 1);
  });
})();
