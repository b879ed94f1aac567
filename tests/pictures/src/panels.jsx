// One panel of each type, with the components that Grafana's own panels are made of.

import { dateTime, FieldType, getDisplayValueAlignmentFactors, getFieldDisplayName, getFieldDisplayValues, VizOrientation } from '@grafana/data';
import { BarGauge, BigValue, TimeSeries, useTheme2, VizRepeater } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';

import { fieldConfig } from './settings.js';
import { StateTimeline } from './timeline.jsx';

const PANELS = { timeseries: Lines, 'state-timeline': StateTimeline, stat: Stat, bargauge: Bars, table: Table };

/** The inside of a panel; where there is nothing to draw, what Grafana writes there. */
export function Inside(props) {
  const { panel, frames } = props;
  const isEmpty = frames.every((frame) => frame.length === 0);
  if (isEmpty && !['stat', 'bargauge', 'table'].includes(panel.type)) {
    return <Empty>{panel.fieldConfig.defaults.noValue ?? 'No data'}</Empty>;
  }
  const Panel = PANELS[panel.type];
  return <Panel {...props} />;
}

function Empty({ children }) {
  const style = { height: '100%', display: 'flex', alignItems: 'center', justifyContent: 'center', color: useTheme2().colors.text.secondary };
  return <div data-empty style={style}>{children}</div>;
}

function Lines({ panel, frames, width, height, span }) {
  const [from, to] = span.map((at) => dateTime(at));
  return (
    <TimeSeries
      frames={frames}
      structureRev={1}
      timeRange={{ from, to, raw: { from, to } }}
      timeZone="utc"
      width={width}
      height={height}
      legend={{ calcs: [], ...panel.options.legend }}
      options={panel.options}
    />
  );
}

function values(panel, frames, theme, sparkline) {
  return getFieldDisplayValues({
    data: frames,
    fieldConfig: fieldConfig(panel),
    reduceOptions: panel.options.reduceOptions,
    replaceVariables: (text) => text,
    sparkline,
    theme,
    timeZone: 'utc',
  });
}

function Repeated({ panel, frames, width, height, sparkline, orientation, children, ...more }) {
  const theme = useTheme2();
  return (
    <VizRepeater
      getValues={() => values(panel, frames, theme, sparkline)}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={children}
      renderCounter={0}
      source={frames}
      width={width}
      height={height}
      orientation={orientation}
      {...more}
    />
  );
}

function Stat(props) {
  const { colorMode, graphMode, textMode = 'auto', orientation = VizOrientation.Auto } = props.panel.options;
  const theme = useTheme2();
  return (
    <Repeated {...props} sparkline={graphMode !== 'none'} orientation={orientation} autoGrid>
      {({ value, width, height, alignmentFactors, count }) => (
        <BigValue
          value={value.display}
          count={count}
          sparkline={value.sparkline}
          colorMode={colorMode}
          graphMode={graphMode}
          textMode={textMode}
          justifyMode="auto"
          alignmentFactors={alignmentFactors}
          width={width}
          height={height}
          theme={theme}
        />
      )}
    </Repeated>
  );
}

function Bars(props) {
  const { displayMode, orientation } = props.panel.options;
  const theme = useTheme2();
  return (
    <Repeated {...props} orientation={orientation} itemSpacing={8} minVizHeight={16} maxVizHeight={300}>
      {({ value, width, height, alignmentFactors, orientation }) => (
        <BarGauge
          value={value.display}
          field={value.field}
          display={value.view?.getFieldDisplayProcessor(value.colIndex)}
          displayMode={displayMode}
          valueDisplayMode="color"
          namePlacement="auto"
          showUnfilled
          orientation={orientation}
          itemSpacing={8}
          alignmentFactors={alignmentFactors}
          width={width}
          height={height}
          theme={theme}
        />
      )}
    </Repeated>
  );
}

function Table({ panel, frames, width, height }) {
  const [frame] = frames;
  const sortBy = panel.options.sortBy?.filter(({ displayName }) => frame.fields.some((it) => getFieldDisplayName(it, frame) === displayName));
  if (frame.length === 0) return <Empty>{panel.fieldConfig.defaults.noValue}</Empty>;
  const fields = frame.fields.filter((it) => it.type !== FieldType.other);
  return <TableNG data={{ ...frame, fields }} width={width} height={height} sortBy={sortBy} structureRev={1} enableVirtualization={false} />;
}
