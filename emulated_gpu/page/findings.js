// The page's own part: the findings; of the one that is clicked its lines, and the events before it.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const byId = (id) => document.getElementById(id);
  const element = (tag, text, kind) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  byId("title").textContent = data.title;
  document.title = data.title;
  const chart = echarts.init(byId("events"), dark ? "dark" : null, { renderer: "canvas", height: 200 });
  addEventListener("resize", () => chart.resize());

  function source(one) {
    const marks = {}; // file -> line -> class
    [["there", one.there], ["here", one.here]].forEach(([kind, places]) => places.forEach((calls) =>
      calls.forEach(([file, line]) => { (marks[file] = marks[file] || {})[line] = kind; })));
    byId("source").replaceChildren(...Object.entries(marks).flatMap(([file, lines]) => {
      const pre = element("pre"), text = data.sources[file];
      pre.append(...(text || ["its text was not found"]).map((shown, i) => {
        const div = element("div", undefined, text && lines[i + 1]);
        div.append(element("span", text ? i + 1 : ""), document.createTextNode(shown));
        return div;
      }));
      return [element("div", file, "dim"), pre];
    }));
    if (!Object.keys(marks).length)
      byId("source").append(element("p", one.where ? "no line info: " + one.where : "no line of a kernel"));
    const goTo = ([file, line]) => {
      const pre = byId("source").querySelectorAll("pre")[Object.keys(marks).indexOf(file)];
      const found = pre.children[line - 1];
      if (found) pre.scrollTop = found.offsetTop - pre.offsetTop - pre.clientHeight / 3;
    };
    const links = (kind, places) => places.map((calls) => {
      const p = element("p", undefined, "calls");
      calls.forEach((call, i) => {
        const link = element("button", call[0].split("/").pop() + ":" + call[1], kind);
        link.onclick = () => goTo(call);
        p.append(i ? " > " : "", link);
      });
      return p;
    });
    byId("source").prepend(...links("here", one.here), ...links("there", one.there));
    [...one.there, ...one.here].forEach((calls) => goTo(calls[0])); // the outermost call, in the kernel itself
  }

  function events(one) {
    byId("before").hidden = !one.where && !one.events.length;
    if (byId("before").hidden) return;
    const last = one.events.length ? one.events[one.events.length - 1][0] + 1 : 1, warp = one.warp || "the kernel";
    const all = [...one.events, [last, warp, one.kind + (one.where && " at " + one.where)]];
    const isOther = (event) => (one.other ? event[0] === one.other : one.message.includes(event[2]));
    const parties = new Set([warp, ...one.events.filter(isOther).map((event) => event[1].replace("for ", ""))]);
    const after = (track) => !parties.has(track.replace("for ", ""));
    const tracks = [...new Set(all.map((event) => event[1]))].sort((a, b) => after(a) - after(b) || (a < b ? -1 : 1));
    const kind = (event) => (event[0] === last ? "the finding" : isOther(event) ? "the other party" : "others");
    const colours = { "the finding": "#d1495b", "the other party": "#f4a259", others: dark ? "#7a828c" : "#9aa4b1" };
    byId("events").style.height = 120 + 30 * tracks.length + "px";
    chart.resize({ height: 120 + 30 * tracks.length });
    chart.setOption({
      backgroundColor: "transparent", animation: false, legend: { top: 0 },
      grid: { left: 8, right: 24, top: 34, bottom: 56, containLabel: true },
      dataZoom: [{ type: "slider", xAxisIndex: 0, bottom: 4, height: 18 }, { type: "inside", xAxisIndex: 0 }],
      tooltip: { confine: true, formatter: (p) => element("div", p.value[2]).innerHTML },
      xAxis: { type: "value", min: all[0][0] - 1, max: last + 1, minInterval: 1 },
      yAxis: { type: "category", data: tracks, inverse: true },
      series: Object.keys(colours).reverse().map((name) => ({
        name, type: "scatter", symbolSize: name === "others" ? 8 : 14, itemStyle: { color: colours[name] },
        data: all.filter((event) => kind(event) === name).map((event) => [event[0], event[1], event[2]]),
      })).filter((series) => series.data.length),
    }, true);
  }

  const items = data.findings.map((one) => {
    const li = element("li"), button = element("button", one.title);
    li.append(button, element("div", one.kind + ": " + one.message + (one.where && ", at " + one.where)
      + " (" + one.of + (one.class === "wrong" ? "" : ", " + one.class) + ")"));
    li.onclick = () => show(one, li);
    byId("findings").append(li);
    return li;
  });
  function show(one, li) {
    items.forEach((item) => {
      item.classList.toggle("shown", item === li);
      item.firstChild.setAttribute("aria-expanded", item === li);
    });
    source(one);
    events(one);
  }
  if (items.length) show(data.findings[0], items[0]);
  else {
    byId("findings").replaceWith(element("p", data.none));
    byId("details").remove();
  }
})();
