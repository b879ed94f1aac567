// A state timeline. Its drawing is the one that Grafana keeps out of its packages, so the bars are drawn here; what they say and
// the legend are Grafana's.

import { FieldType, getFieldDisplayName, getValueFormat } from '@grafana/data';
import { measureText, useTheme2, VizLayout, VizLegend } from '@grafana/ui';

const FONT = 12;
const AXIS = 22;

export function StateTimeline({ panel, frames, width, height, span }) {
  const theme = useTheme2();
  const rows = frames.map((frame) => {
    const [time, value] = [FieldType.time, FieldType.number].map((type) => frame.fields.find((it) => it.type === type));
    return { name: getFieldDisplayName(value, frame, frames), bars: bars(time.values, value, span[1]) };
  });
  const shown = new Map(rows.flatMap(({ bars }) => bars.map(({ text, color }) => [text, color])));
  const names = Math.max(...rows.map(({ name }) => measureText(name, FONT).width)) + 8;
  const legend = [...shown].map(([label, color]) => ({ label, color, yAxis: 1 }));
  const { rowHeight, legend: settings } = panel.options;
  return (
    <VizLayout
      width={width}
      height={height}
      legend={<VizLayout.Legend placement={settings.placement}><VizLegend items={legend} {...settings} /></VizLayout.Legend>}
    >
      {(width, height) => {
        const lane = (height - AXIS) / rows.length;
        const x = (at) => names + ((at - span[0]) / (span[1] - span[0])) * (width - names);
        const text = { fill: theme.colors.text.primary, fontSize: FONT, fontFamily: theme.typography.fontFamily };
        return (
          <svg width={width} height={height}>
            {rows.map(({ name, bars }, row) => (
              <g key={name} transform={`translate(0 ${row * lane})`}>
                <text x={names - 8} y={lane / 2} dominantBaseline="central" textAnchor="end" {...text}>{name}</text>
                {bars.map(({ from, to, color }) => (
                  <rect key={from} x={x(from)} y={(lane * (1 - rowHeight)) / 2} width={x(to) - x(from)} height={lane * rowHeight}
                    fill={color} fillOpacity={panel.fieldConfig.defaults.custom.fillOpacity / 100} />
                ))}
              </g>
            ))}
            {ticks(span).map((at) => (
              <text key={at} x={x(at)} y={height - 4} textAnchor="middle" {...text}>{getValueFormat('time:HH:mm:ss')(at).text}</text>
            ))}
          </svg>
        );
      }}
    </VizLayout>
  );
}

/** Spans of the same value; one ends where the next begins. */
function bars(times, field, end) {
  const bars = [];
  times.forEach((at, index) => {
    const { text, color } = field.display(field.values[index]);
    const last = bars.at(-1);
    if (last) last.to = at;
    if (last?.text !== text) bars.push({ from: at, to: at, text, color });
  });
  if (bars.length > 0) bars.at(-1).to = Math.min(end, times.at(-1) + 1000);
  return bars;
}

function ticks([from, to]) {
  const step = 30_000;
  const first = Math.ceil((from + 1) / step) * step;
  return Array.from({ length: Math.floor((to - first) / step) + 1 }, (_, index) => first + index * step);
}
