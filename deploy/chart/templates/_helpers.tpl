{{- define "portreeve.name" -}}
{{- if regexMatch "-(reader|guard)$" (.Values.fullnameOverride | default "") -}}
{{- fail (printf "fullnameOverride is %q: names that end with -reader or -guard are of other objects of this chart" .Values.fullnameOverride) -}}
{{- end -}}
{{- .Values.fullnameOverride | default "portreeve" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "portreeve.serviceAccount" -}}
{{- if has .Values.serviceAccount.name (list (include "portreeve.reader" .) (include "portreeve.guard" .)) -}}
{{- fail (printf "serviceAccount.name: %s is another account of this chart, with other rights" .Values.serviceAccount.name) -}}
{{- end -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "portreeve.name" .) -}}
{{- else -}}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The ServiceAccount whose tokens agents accept, and the Role of who may ask for them. */}}
{{- define "portreeve.reader" -}}
{{ include "portreeve.name" . | trunc 56 | trimSuffix "-" }}-reader
{{- end -}}

{{- define "portreeve.guard" -}}
{{ include "portreeve.name" . | trunc 57 | trimSuffix "-" }}-guard
{{- end -}}

{{/* Cluster-wide objects carry the namespace, so that two releases do not meet: with a dot, which neither name has. */}}
{{- define "portreeve.clusterName" -}}
{{- $name := include "portreeve.name" . -}}
{{- if eq $name .Release.Namespace -}}{{ $name }}{{- else -}}{{ printf "%s.%s" .Release.Namespace $name }}{{- end -}}
{{- end -}}

{{/* Of the agent, or of the guard if `part` is `-guard`. */}}
{{- define "portreeve.selector" -}}
app.kubernetes.io/name: portreeve{{ .part | default "" }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* Helm adds `managed-by: Helm` itself: with that label, `kubectl apply` of the same text would make objects that lie. */}}
{{- define "portreeve.labels" -}}
{{ include "portreeve.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The same with labels that win over them. */}}
{{- define "portreeve.labelsAnd" -}}
{{- merge (dict) (.labels | default dict) (include "portreeve.labels" .root | fromYaml) | toYaml -}}
{{- end -}}

{{/* A name without a registry can be the image of another owner: each node may search it in other registries. */}}
{{- define "portreeve.image" -}}
{{- with .Values.image -}}
{{- if not (regexMatch "^(localhost|[^/]*[.:][^/]*)/." .repository) -}}
{{- fail (printf "image.repository is %q, wanted the image's name with its registry, like registry.example/portreeve" .repository) -}}
{{- end -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What the pods of agent and guard have in common: the network, the nodes, the image. `moreLabelsOfNodes` is only of the guard. */}}
{{- define "portreeve.pod" -}}
automountServiceAccountToken: true
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
hostNetwork: true
# The pod uses the node's own resolver, because the cluster's DNS does not work behind a broken Service.
dnsPolicy: Default
terminationGracePeriodSeconds: 5
{{- with merge (dict) (.moreLabelsOfNodes | default dict) (.Values.nodeSelector | default dict) }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The name and the address of the node, for both. */}}
{{- define "portreeve.env" -}}
# The default `apiVersion` is written out, so that helm can adopt objects that kubectl applied.
- name: NODE_NAME
  valueFrom:
    fieldRef:
      apiVersion: v1
      fieldPath: spec.nodeName
- name: HOST_IP
  valueFrom:
    fieldRef:
      apiVersion: v1
      fieldPath: status.hostIP
{{- end -}}

{{/* More environment. Of two values of one name the second would win, and the first would come back with an update. */}}
{{- define "portreeve.moreEnv" -}}
{{- $names := list "NODE_NAME" "HOST_IP" "PORTREEVE_LISTEN" "PORTREEVE_SOCKET" -}}
{{- range .Values.env -}}
{{- if has .name $names -}}
{{- fail (printf "env: %s is there twice, or is set by the chart" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- with .Values.env -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{/* What a container may do, by profile. */}}
{{- define "portreeve.securityContext" -}}
{{- $profile := .Values.profile -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
{{- if eq $profile "minimal" }}
runAsNonRoot: true
runAsUser: 65534
runAsGroup: 65534
{{- else }}
runAsUser: 0
runAsGroup: 0
appArmorProfile:
  type: Unconfined
{{- end }}
seccompProfile:
  type: RuntimeDefault
capabilities:
  drop: [ALL]
{{- if eq $profile "attribution" }}
  add: [SYS_PTRACE, DAC_READ_SEARCH]
{{- else if eq $profile "netfilter" }}
  add: [SYS_PTRACE, DAC_READ_SEARCH, NET_ADMIN]
{{- end }}
{{- end -}}

{{/* The agent's configuration file. Here is refused what the agent refuses and the schema cannot say: sums and order. */}}
{{- define "portreeve.config" -}}
{{- $config := .Values.config | default dict -}}
{{- range $key := list "interval" "request-timeout" -}}
{{- $sum := 0 -}}
{{- range $part := regexFindAll "[0-9]+[a-z]+" (get $config $key) -1 -}}
{{- $unit := get (dict "h" 3600000 "m" 60000 "s" 1000 "ms" 1) (regexFind "[a-z]+" $part) -}}
{{- $sum = regexFind "[0-9]+" $part | atoi | mul $unit | add $sum -}}
{{- end -}}
{{- if and (hasKey $config $key) (or (lt $sum 1) (gt $sum 3600000)) -}}
{{- fail (printf "config.%s is %q, wanted a duration from 1ms to 1h" $key (get $config $key)) -}}
{{- end -}}
{{- end -}}
{{- with get $config "node-port-range" -}}
{{- $ports := regexFindAll "[0-9]+" . -1 -}}
{{- if and (not (contains "+" .)) (gt (first $ports | atoi) (last $ports | atoi)) -}}
{{- fail (printf "config.node-port-range is %q, and its first port is the higher one" .) -}}
{{- end -}}
{{- end -}}
{{- $limits := get $config "limits" | default dict -}}
{{- range $name := list "ephemeral" "fds" -}}
{{- $warning := get $limits (printf "%s_warning_percent" $name) | default 80 | int -}}
{{- $critical := get $limits (printf "%s_critical_percent" $name) | default 95 | int -}}
{{- if gt $warning $critical -}}
{{- fail (printf "config.limits.%s_warning_percent is %d, wanted no more than the critical one, %d" $name $warning $critical) -}}
{{- end -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* A file of the chart. A chart from which files were lost must not install half of what was asked for. */}}
{{- define "portreeve.file" -}}
{{- .root.Files.Get .file | required (printf "%s is missing in the chart or empty: get the whole chart again" .file) -}}
{{- end -}}

{{/* A file of alerts or a dashboard. With the address of the site, its pages are links: `docs/rules/README.md` is `rules/index.html`. */}}
{{- define "portreeve.seen" -}}
{{- $text := include "portreeve.file" . -}}
{{- with .root.Values.documentation -}}
{{- $text = regexReplaceAll `docs/([^"\s]*?(?:\{\{[^}]*\}\}[^"\s]*?)?)\.md` $text (printf "%s${1}.html" .) | replace "README.html" "index.html" -}}
{{- end -}}
{{- $text | trim -}}
{{- end -}}
