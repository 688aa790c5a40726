// Pictures over time. A figure says what it holds, in one attribute, and this draws it:
//
//   <div data-chart="{…}" role="img" aria-label="…"></div>
//   {"x": [unix seconds], "series": [{"name": "webhooks", "state": "dead", "y": [1, null, 3]}],
//    "kind": "bars" | "lines", "stacked": true, "unit": "failures", "height": 200, "marks": [unix seconds], "levels": [values]}
//
// The page brings a picture of its own in there. When somebody points at it, or comes to it, the library is fetched
// (`data-script`, `data-style`) and draws one that answers: hover tells the values, drag zooms, double click goes back, a click in the legend hides a series. Series of one
// state are told apart by tint. When a live part brings new data, the picture is fed, not built anew.
"use strict";
(() => {
  const drawn = new WeakMap();
  const probe = document.createElement("i");
  probe.hidden = true;

  const colour = (css) => {
    probe.style.color = css;
    if (!probe.isConnected) document.body.append(probe);
    return getComputedStyle(probe).color;
  };

  const tints = (series) => {
    const seen = {};
    return series.map(({ state }) => {
      const nth = (seen[state] = (seen[state] ?? -1) + 1);
      const strength = [100, 68, 46, 32, 22][Math.min(nth, 4)];
      const base = state ? `var(--${state})` : "var(--ink-2)";
      return colour(`color-mix(in srgb, ${base} ${strength}%, var(--raised))`);
    });
  };

  // The columns that uPlot wants; stacked, each series stands on those after it and is drawn before them.
  const columns = (given, shown) => {
    const raw = given.series.map((one) => one.y);
    if (!given.stacked) return [given.x, ...raw];
    const out = raw.map(() => null);
    let below = new Array(given.x.length).fill(0);
    for (let n = raw.length - 1; n >= 0; n -= 1) {
      if (shown[n]) below = below.map((sum, at) => sum + (raw[n][at] || 0));
      out[n] = below;
    }
    return [given.x, ...out];
  };

  const number = (value) => (value == null ? "–" : value.toLocaleString("en", { maximumFractionDigits: 1 }));
  const utc = (seconds) => window.uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC");

  const draw = (host) => {
    const given = JSON.parse(host.dataset.chart);
    const ink = colour("var(--ink-3)");
    const rule = colour("var(--rule)");
    const fills = tints(given.series);
    const state = { given, shown: given.series.map(() => true), source: host.dataset.chart };
    const isBars = given.kind === "bars";
    const lastStep = () => (isBars && state.given.x.length > 1 ? state.given.x[1] - state.given.x[0] : 0);
    const axis = {
      stroke: ink,
      font: `11px ${getComputedStyle(document.body).fontFamily}`,
      grid: { stroke: rule, width: 1 },
      ticks: { show: false },
    };
    const options = {
      width: Math.max(host.clientWidth, 200),
      height: given.height || 200,
      tzDate: utc,
      padding: [8, 4, 0, 0],
      cursor: { points: { show: !isBars }, y: false },
      // A bar stands on its step's beginning: the last one needs a step more of room.
      scales: { x: { time: true, range: (_, low, high) => [low, high + lastStep()] }, y: { range: (_, low, high) => [0, Math.max(Math.max(high, ...(state.given.levels || [])) * 1.08, 1)] } },
      legend: { live: true },
      axes: [
        { ...axis, grid: { show: false }, space: 70, size: 40, values: [
          [86400, "{D} {MMM}", null, null, null, null, null, null, 1],
          [3600, "{HH}:{mm}", "\n{D} {MMM}", null, null, null, null, null, 1],
          [60, "{HH}:{mm}", "\n{D} {MMM}", null, null, null, null, null, 1],
          [1, "{HH}:{mm}:{ss}", "\n{D} {MMM}", null, null, null, null, null, 1],
        ] },
        { ...axis, size: 52, space: 36, values: (_, marks) => marks.map(number) },
      ],
      series: [
        { label: "UTC", value: (_, at) => (at == null ? "whole picture" : new Date(at * 1000).toISOString().slice(5, 16).replace("T", " ")) },
        ...given.series.map((one, n) => ({
          label: one.name,
          stroke: isBars ? undefined : fills[n],
          fill: isBars ? fills[n] : undefined,
          width: isBars ? 0 : 1.6,
          points: { show: false },
          paths: isBars ? window.uPlot.paths.bars({ size: [0.86, 60], align: 1 }) : window.uPlot.paths.stepped({ align: 1 }),
          value: (_, __, ___, at) => (at == null ? number(isBars ? state.given.series[n].y.reduce((sum, y) => sum + (y || 0), 0) : state.given.series[n].y.findLast((y) => y != null)) : number(state.given.series[n].y[at])),
        })),
      ],
      hooks: {
        // Upright lines at moments, and levels that somebody watches; the page tells below what they are.
        draw: [({ ctx, bbox, valToPos, scales }) => {
          ctx.save();
          ctx.strokeStyle = colour("var(--ink)");
          ctx.setLineDash([4, 3]);
          for (const at of (state.given.marks || []).filter((one) => one >= scales.x.min && one <= scales.x.max)) {
            const x = Math.round(valToPos(at, "x", true)) + 0.5;
            ctx.beginPath();
            ctx.moveTo(x, bbox.top);
            ctx.lineTo(x, bbox.top + bbox.height);
            ctx.stroke();
          }
          ctx.strokeStyle = colour("var(--retrying)");
          for (const value of state.given.levels || []) {
            const y = Math.round(valToPos(value, "y", true)) + 0.5;
            ctx.beginPath();
            ctx.moveTo(bbox.left, y);
            ctx.lineTo(bbox.left + bbox.width, y);
            ctx.stroke();
          }
          ctx.restore();
        }],
        setSeries: [(picture, n, change) => {
          if (!n || change.show === undefined) return;
          state.shown[n - 1] = change.show;
          if (state.given.stacked) picture.setData(columns(state.given, state.shown), false);
          picture.redraw();
        }],
      },
    };
    host.replaceChildren();
    state.picture = new window.uPlot(options, columns(given, state.shown), host);
    drawn.set(host, state);
  };

  const feed = () => {
    for (const host of document.querySelectorAll("[data-chart][data-drawn]")) {
      const state = drawn.get(host);
      if (!state || !host.firstChild) { draw(host); continue; }
      if (state.source === host.dataset.chart) continue;
      const given = JSON.parse(host.dataset.chart);
      const same = given.series.map((one) => one.name).join() === state.given.series.map((one) => one.name).join();
      if (!same) { draw(host); continue; }
      const { min, max } = state.picture.scales.x;
      const isZoomed = min > state.given.x[0] || max < state.given.x[state.given.x.length - 1];
      state.given = given;
      state.source = host.dataset.chart;
      state.picture.setData(columns(given, state.shown), !isZoomed);
      if (isZoomed) state.picture.redraw();
    }
  };
  const again = () => { for (const host of document.querySelectorAll("[data-chart][data-drawn]")) draw(host); };

  let library = null;
  const loaded = ({ script, style }) => (library ??= new Promise((done, failed) => {
    const sheet = Object.assign(document.createElement("link"), { rel: "stylesheet", href: style });
    const code = Object.assign(document.createElement("script"), { src: script });
    code.onload = () => (sheet.sheet ? done() : sheet.addEventListener("load", done));
    code.onerror = () => { library = null; failed(); };
    document.head.append(sheet, code);
  }));
  const wake = (event) => {
    const host = event.target.closest?.("[data-chart]:not([data-drawn])");
    if (!host) return;
    loaded(host.dataset).then(() => {
      if (host.dataset.drawn !== undefined) return;
      host.dataset.drawn = "";
      watch();
    }, () => {});
  };
  document.addEventListener("pointerover", wake);
  document.addEventListener("focusin", wake);
  const sizes = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) {
      const state = drawn.get(target);
      if (state && contentRect.width && Math.abs(state.picture.width - contentRect.width) > 1) {
        state.picture.setSize({ width: contentRect.width, height: state.given.height || 200 });
      }
    }
  });
  function watch() { feed(); for (const host of document.querySelectorAll("[data-chart][data-drawn]")) sizes.observe(host); }
  document.addEventListener("htmx:afterSettle", watch);
  document.addEventListener("redrive:theme", again);
  watch();
})();
