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
  const figure = (value) => (value < 0.005 ? "" : Number.isInteger(value) ? String(value) : value.toFixed(2));
  const size = (bytes) => (bytes >= 1e5 ? (bytes / 1e6).toFixed(2) + " MB" : (bytes / 1e3).toFixed(2) + " KB");
  const between = (of) => of.us_corrected.toFixed(2)
    + (of.us_interval ? " (" + of.us_interval.map((x) => x.toFixed(2)).join(" to ") + ")" : " (no bracket)");
  const percent = (share) => (100 * share).toFixed(share < 0.0995 ? 1 : 0) + " %";

  if (!alone) byId("title").textContent = data.title;
  byId("basis").textContent = data.basis;
  byId("partial").textContent = data.partial ? "Partial: " + data.partial : "";
  data.facts.forEach((fact) => byId("facts").append(element("li", fact)));

  // -- the answer: time and floors of the kernel that takes most, where the time of all SMs goes
  const took = (x) => x.us_corrected * x.launches.length, main = data.kernels.reduce((a, b) => (took(b) > took(a) ? b : a));
  byId("us").append(main.us_corrected.toFixed(2) + " us ", element("small",
    (main.us_interval ? "it may be " + main.us_interval.map((x) => x.toFixed(2)).join(" to ") : main.unlike)),
  element("small", main.title + (main.launches.length > 1 ? ", each of " + main.launches.length + " launches" : "")));
  if (data.baseline) {
    const change = main.us / data.baseline.us - 1;
    byId("baseline").textContent = "baseline " + data.baseline.title + ": " + data.baseline.us_corrected.toFixed(2) + " us; this takes "
      + (100 * Math.abs(change)).toFixed(1) + " % " + (change > 0 ? "more" : "less");
  }
  const long = Math.max(main.us, ...Object.values(main.floors_us));
  const bar1 = (name, us, kind) => {
    const made = element("i", undefined, kind);
    made.style.width = 100 * us / long + "%";
    byId("bars").append(element("span", name), made, element("span", us.toFixed(2) + " us"));
  };
  bar1("time, the model's own", main.us, "time");
  Object.entries(main.floors_us).forEach(([name, us]) => bar1("floor by " + name, us));
  function stack(place, title, parts) { // parts: [name, share, colour], the shares of all
    const bar = element("div", undefined, "stack"), key = element("ul", undefined, "key");
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", title + ": " + parts.map(([name, share]) => name + " " + percent(share)).join(", "));
    parts.forEach(([name, share, colour]) => {
      const piece = element("i"), of = element("li"), dot = element("i");
      piece.style.cssText = "flex: " + share + " 0 0; background: " + colour;
      piece.title = name + " " + percent(share);
      dot.style.background = colour;
      of.append(dot, name + " " + percent(share));
      bar.append(piece);
      key.append(of);
    });
    byId(place).append(element("div", title, "dim"), bar, key);
  }
  const stateColours = Object.fromEntries(data.map.names.map((name, i) => [name, data.map.colours[i]]));
  stack("shares", "time of all SMs" + (data.launches.length > 1 ? ", between the ends of two launches" : ""),
    Object.entries(data.shares).map(([name, share]) => [name, share, stateColours[name] || "#888"]));

  // -- tables: columns are [name, value of a row, whether it is text]; a head sorts, a row is chosen by click or Enter
  function table(place, columns, rows, onClick) {
    const made = element("table"), head = element("thead"), body = element("tbody"), line = element("tr");
    let shown = rows, words = [];
    const fill = () => {
      const text = (row) => [...columns.map(([, value]) => String(value(row))), row.spread].join(" ").toLowerCase();
      const kept = words.length ? shown.filter((row) => words.every((word) => text(row).includes(word))) : shown;
      body.replaceChildren(...kept.map((row) => {
        const tr = element("tr", undefined, onClick ? "link" : "");
        if (row.spread) tr.title = row.spread;
        columns.forEach(([, value, text]) => {
          const shown = value(row);
          tr.append(element("td", typeof shown === "number" ? figure(shown) : shown, text ? "text" : ""));
        });
        if (onClick) {
          tr.onclick = () => onClick(row);
          tr.tabIndex = 0;
          tr.setAttribute("aria-label", columns.map(([name], i) => name + " " + tr.children[i].textContent).join(", "));
          tr.onkeydown = (event) => {
            const next = { ArrowDown: tr.nextElementSibling, ArrowUp: tr.previousElementSibling }[event.key];
            if (next) { next.focus(); event.preventDefault(); }
            if (event.key === "Enter" || event.key === " ") { onClick(row); event.preventDefault(); }
          };
        }
        return tr;
      }));
    };
    columns.forEach(([name, value, text]) => {
      const th = element("th", undefined, text ? "text" : ""), button = element("button", name);
      const order = text ? (a, b) => String(value(a)).localeCompare(String(value(b))) : (a, b) => value(b) - value(a);
      button.onclick = () => {
        const turned = th.getAttribute("aria-sort") === (text ? "ascending" : "descending");
        [...line.children].forEach((other) => other.removeAttribute("aria-sort"));
        th.setAttribute("aria-sort", (text !== turned) && text ? "ascending" : text ? "descending" : turned ? "ascending" : "descending");
        shown = [...rows].sort((a, b) => (turned ? -1 : 1) * order(a, b));
        fill();
      };
      th.scope = "col";
      th.append(button);
      line.append(th);
    });
    head.append(line);
    made.setAttribute("aria-label", place === "hot" ? "Hot spots" : "Launches");
    made.append(head, body);
    byId(place).append(made);
    fill();
    return {
      find: (sought) => { words = sought.toLowerCase().split(/\s+/).filter(Boolean); fill(); },
      use: (others) => {
        shown = rows = others;
        [...line.children].forEach((other) => other.removeAttribute("aria-sort"));
        fill();
      },
    };
  }
  table("launches", [
    ["launch", (x) => String(x.launch)], ["kernel", (x) => x.title + (x.pdl ? ", dependent" : ""), true],
    ["us (may be)", between], ["starts", (x) => x.start_us], ["ends", (x) => x.end_us],
  ], data.launches);
  data.kernels.forEach((x) => {
    const folded = element("details"), list = element("dl");
    folded.open = x === main;
    folded.append(element("summary", x.title + ": " + x.launches.length + " x " + between(x) + " us"), list);
    const moved = Object.entries(x.moved_bytes).filter((m) => m[1]).map((m) => m[0] + " " + size(m[1])).join(", ");
    [
      ["grid, cluster", x.grid.join(" x ") + " CTAs, clusters of " + x.cluster.join(" x ")],
      ["threads, registers, stack", x.threads + ", " + (x.registers ?? "?") + " a thread, " + (x.stack_bytes ?? "?") + " bytes a thread"],
      ["memory of a CTA", size(x.shared_bytes) + " shared, " + x.tensor_memory_columns + " columns of tensor memory"],
      ["occupancy", x.ctas_per_sm + (x.ctas_per_sm === 1 ? " CTA an SM, limited by " : " CTAs an SM, limited by ") + x.limited_by + ": "
        + percent(x.occupancy.theoretical) + " of an SM's warps in theory, " + percent(x.occupancy.achieved) + " in the mean of all SMs"],
      ["moved", (moved || "nothing") + "; HBM " + size(x.hbm_bytes) + ", L2 hits " + percent(x.l2_hits)],
      ["products", (x.flops / 1e9).toFixed(3) + " GFLOP by MMAs"],
      ["floors", Object.entries(x.floors_us).map(([name, us]) => name + " " + us.toFixed(2) + " us").join(", ")],
    ].forEach(([name, text]) => list.append(element("dt", name), element("dd", text)));
    byId("kernels").append(folded);
  });

  // -- memory: who gives what to whom, at what rate
  const rate = (bytes) => size(bytes) + ", " + (bytes / main.us / 1e6).toFixed(2) + " TB/s";
  const box = (name, text, to) => {
    const made = element("div", undefined, to ? "to" : "");
    made.append(element("b", name), text);
    byId("memory").append(made);
  };
  const given = ["TMA loads", "thread loads"].map((name) => [name, main.moved_bytes[name] || 0]);
  const taken = ["TMA stores", "thread stores", "atomics"].map((name) => [name, main.moved_bytes[name] || 0]);
  const all1 = (parts) => parts.filter((x) => x[1]).map(([name, bytes]) => name + " " + rate(bytes)).join("; ") || "nothing";
  box("HBM", "at best " + data.peak + " TB/s");
  box("\u2194", rate(main.hbm_bytes), true);
  box("L2", percent(main.l2_hits) + " hits");
  box("\u2192", all1(given), true);
  box(data.sms + " SMs", main.moved_bytes["shared memory of other CTAs"] ? "to each other " + rate(main.moved_bytes["shared memory of other CTAs"]) : "");
  box("\u2192", all1(taken), true);
  box("L2", "");

  const totals = {};
  data.lines.forEach((row) => Object.entries(row.us).forEach(([why, us]) => (totals[why] = (totals[why] || 0) + us)));
  const reasons = Object.keys(totals).sort((a, b) => totals[b] - totals[a]).slice(0, 8);
  const all = sum(totals) || 1;
  const palette = ["#3b6ea5", "#f4a259", "#2a9d3a", "#d1495b", "#8e6bbf", "#4bb3c3", "#b58900", "#9aa4b1"];
  const few = reasons.map((why, i) => [why, totals[why] / all, palette[i]]), rest = 1 - few.reduce((a, x) => a + x[1], 0);
  stack("stalls", "time of all warps", rest > 0.0005 ? [...few, ["other", rest, "#777"]] : few);
  const wide = (data.sms && innerWidth < 900 ? 3 : 5); // columns of reasons that fit
  const hot = table("hot", [
    ["line", (x) => x.shown, true], ["% of time", (x) => 100 * sum(x.us) / all], ["us", (x) => sum(x.us)],
    ...(data.baseline ? [["baseline us", (x) => data.baseline.lines[x.shown] || 0]] : []),
    ...[["sectors", 0], ["needed", 1], ["bank conflicts", 2]].filter(([, at]) => data.lines.some((x) => x.figures[at]))
      .map(([name, at]) => [name, (x) => x.figures[at]]),
    ...reasons.slice(0, wide).map((why) => [why, (x) => x.us[why] || 0]),
  ], data.lines, (row) => { show(row); mark((row.of || row).shown); });
  byId("find").oninput = (event) => hot.find(event.target.value);
  const instructions = data.ptx.map(([, number, text, , us, spread = "", figures = [0, 0, 0]]) => {
    const of = data.lines.find((row) => row.ptx.includes(number)) || { calls: [["PTX", number]], shown: "PTX:" + number };
    return { shown: number + ": " + text, us, spread, figures, ptx: [number], calls: of.calls, of };
  });
  byId("by").onchange = (event) => hot.use(event.target.selectedIndex
    ? instructions.filter((row) => sum(row.us)).sort((a, b) => sum(b.us) - sum(a.us)) : data.lines);

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
    if (data.sass.length) byId("sass").replaceChildren(...data.sass.map(([, address, shown, number, stall, waits]) => {
      const us = timeOf[number], part = us && Object.fromEntries(Object.entries(us).map(([why, x]) => [why, x / partsOf[number]]));
      const told = String(stall).padStart(2) + (waits.length ? " sb" + waits.join(",") : "").padEnd(7) + shown;
      return row(address, told, part, wanted.has(number));
    }));
    const listed = ["ptx", ...(data.sass.length ? ["sass"] : [])];
    ["source", ...listed].forEach((place) => reveal(byId(place)));
    listed.flatMap((place) => [...byId(place).children]).forEach((line) => {
      line.setAttribute("role", "option");
      line.setAttribute("aria-selected", line.classList.contains("marked"));
    });
  }
  // -- rows of PTX and SASS: a click, or arrows and Enter, shows what they belong to
  const timeOf = {}, partsOf = {};
  data.ptx.forEach(([, number, , , us]) => { timeOf[number] = us; });
  data.sass.forEach(([, , , number]) => { partsOf[number] = (partsOf[number] || 0) + 1; });
  if (!data.sass.length) { byId("sass").parentElement.remove(); byId("ofsass").remove(); }
  [["ptx", (at) => data.ptx[at][1]], ["sass", (at) => data.sass[at][3]]].forEach(([name, lineOf]) => {
    const place = byId(name);
    if (!place) return;
    let at = -1;
    const pick = () => {
      const one = instructions.find((row) => row.ptx[0] === lineOf(at));
      if (!one) return;
      show({ ...one, shown: one.of.shown });
      mark(one.of.shown);
    };
    place.onclick = (event) => {
      at = [...place.children].indexOf(event.target.closest("div"));
      if (at >= 0) pick();
    };
    place.onkeydown = (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) {
        const marked = [...place.children].findIndex((div) => div.classList.contains("marked"));
        at = Math.max(0, Math.min(place.children.length - 1, (at < 0 ? marked : at) + step));
        place.querySelectorAll(".at").forEach((div) => { div.classList.remove("at"); div.removeAttribute("id"); });
        place.children[at].classList.add("at");
        place.children[at].id = name + "-at";
        place.setAttribute("aria-activedescendant", name + "-at");
        place.children[at].scrollIntoView({ block: "nearest" });
      } else if (event.key === "Enter" && at >= 0) pick();
      if (step || event.key === "Enter") event.preventDefault();
    };
  });
  data.verdicts.forEach((verdict) => {
    const li = element("li", verdict.text), entry = data.lines.find((x) => x.shown === verdict.shown);
    if (entry) {
      const a = element("button", verdict.shown, "link");
      a.onclick = () => { show(entry); mark(entry.shown); byId("file").scrollIntoView(); };
      li.append(" (", a, ")");
    }
    if (verdict.gain) {
      const gain = element("span", undefined, "gain");
      gain.append(element("b", "-" + (100 * verdict.share).toFixed(0) + " %"), verdict.gain);
      li.append(gain);
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
    byId("sm").value = near;
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
  byId("sm").max = data.sms - 1;
  byId("sm").onchange = (event) => pick(Number(event.target.value));
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
        { name: "roof", type: "line", showSymbol: true, label: { show: true, position: "top", color: dark ? "#a3a8b4" : "#5c6270",
          formatter: (p) => (p.dataIndex ? "" : data.peak + " TB/s") },
          data: [{ value: [low, low * data.peak], label: { position: [14, 10] } },
            { value: [ridge, peak], label: { formatter: peak.toFixed(0) + " TFLOP/s" } }, [high, peak]] },
        ...points.map((x) => ({ name: x.title, type: "scatter", symbolSize: 14, data: [[intensity(x), x.flops / x.us / 1e6]],
          label: { show: true, position: intensity(x) > Math.sqrt(low * high) ? "left" : "right", lineHeight: 16, color: dark ? "#e4e6ea" : "#1c1e21",
            formatter: x.title + "\n" + (x.flops / x.us / 1e6).toFixed(0) + " TFLOP/s, " + intensity(x).toFixed(0) + " FLOP/B" } })),
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
  document.body.classList.toggle("alone", views.length === 1);
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
  if (views.length === 1) document.querySelectorAll("[data-nav]").forEach((head, i) => {
    head.id = head.id || "part" + i;
    const a = document.createElement("a");
    a.href = "#" + head.id;
    a.textContent = head.textContent;
    document.querySelector("nav").append(a);
  });
})();
