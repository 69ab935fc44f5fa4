{{/* Which nodes a pool picks: node selector terms as a JSON list of lists of requirements. Takes root and pool. */}}
{{- define "xpu-agent.picked" -}}
{{- $always := list -}}
{{- range $key, $value := default dict .pool.nodeSelector -}}
{{- $always = append $always (dict "key" $key "operator" "In" "values" (list $value)) -}}
{{- end -}}
{{- $affinity := fromJson (include "xpu-agent.affinity" .) -}}
{{- $terms := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" (list dict) $affinity -}}
{{- $picked := list -}}
{{- range $terms -}}
{{- $fields := list -}}
{{- range default list .matchFields -}}
{{- $fields = append $fields (merge (dict "key" (printf "field %s" .key)) .) -}}
{{- end -}}
{{- $picked = append $picked (concat $always (default list .matchExpressions) $fields) -}}
{{- end -}}
{{- toJson $picked -}}
{{- end -}}

{{/* Whether no node meets both requirements. Takes a and b. */}}
{{- define "xpu-agent.contradict" -}}
{{- $a := .a -}}
{{- $b := .b -}}
{{- if eq $a.key $b.key -}}
{{- if and (eq $a.operator "In") (eq $b.operator "In") -}}
{{- $common := false -}}
{{- range $a.values -}}{{- if has . $b.values -}}{{- $common = true -}}{{- end -}}{{- end -}}
{{- if not $common -}}yes{{- end -}}
{{- else if and (eq $a.operator "In") (eq $b.operator "NotIn") -}}
{{- $left := false -}}
{{- range $a.values -}}{{- if not (has . $b.values) -}}{{- $left = true -}}{{- end -}}{{- end -}}
{{- if not $left -}}yes{{- end -}}
{{- else if and (has $a.operator (list "In" "Exists")) (eq $b.operator "DoesNotExist") -}}
yes
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether no node is picked by both lists of terms. Takes one and other. */}}
{{- define "xpu-agent.disjoint" -}}
{{- $overlap := false -}}
{{- range $term := .one -}}
{{- range $else := $.other -}}
{{- $apart := false -}}
{{- range $a := $term -}}
{{- range $b := $else -}}
{{- if or (include "xpu-agent.contradict" (dict "a" $a "b" $b)) (include "xpu-agent.contradict" (dict "a" $b "b" $a)) -}}
{{- $apart = true -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $apart -}}{{- $overlap = true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $overlap -}}yes{{- end -}}
{{- end -}}

{{/* Every mistake that the schema can not see. */}}
{{- define "xpu-agent.check" -}}
{{- $pools := fromJson (include "xpu-agent.pools" .) -}}
{{- if not $pools -}}
{{- fail "pools: none is on, so that no node would be served; have one with the vendors of its nodes" -}}
{{- end -}}
{{- range $name, $pool := $pools -}}
{{- range $vendor := $pool.vendors -}}
{{- if not (hasKey $.Values.vendors $vendor) -}}
{{- fail (printf "pools.%s.vendors: '%s' is no vendor here; there are %s, or add vendors.%s" $name $vendor (keys $.Values.vendors | sortAlpha | join ", ") $vendor) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $name, $pool := $pools -}}
{{- range $other, $its := $pools -}}
{{- if lt $name $other -}}
{{- $one := fromJsonArray (include "xpu-agent.picked" (dict "root" $ "pool" $pool)) -}}
{{- $two := fromJsonArray (include "xpu-agent.picked" (dict "root" $ "pool" $its)) -}}
{{- if not (include "xpu-agent.disjoint" (dict "one" $one "other" $two)) -}}
{{- fail (printf "pools: '%s' and '%s' may pick the same node, and a node has one agent. Give their nodeSelector another value of one label, or exclude the other's nodes by nodeAffinity (NotIn, DoesNotExist). A node with cards of both belongs to one pool with vendors [%s]" $name $other (concat $pool.vendors $its.vendors | uniq | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.config.name .Values.config.map -}}
{{- fail "config: name (a ConfigMap that exists) and map (one of the chart's own) are both set; set one" -}}
{{- end -}}
{{- if and .Values.config.map (gt (len .Values.config.map) 1) (not .Values.config.default) (not (and (hasKey .Values.config.map "default") (has "named" .Values.config.fallbackStrategies))) (not (has "empty" .Values.config.fallbackStrategies)) -}}
{{- fail (printf "config.map has %s and config.default names none of them, so that a node without the label has no config; name one" (keys .Values.config.map | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if and .Values.config.map .Values.config.default (not (hasKey .Values.config.map .Values.config.default)) -}}
{{- fail (printf "config.default: '%s' is not in config.map, which has %s" .Values.config.default (keys .Values.config.map | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if and (not .Values.api.enabled) (has .Values.labels.output (list "node" "nodeFeature")) -}}
{{- fail (printf "labels.output: %s is told to the API server, and api.enabled is false; set file or none" .Values.labels.output) -}}
{{- end -}}
{{- if and (gt (int .Values.http.hostPort) 0) .Values.hostNetwork -}}
{{- fail "http.hostPort and hostNetwork are both set; on the host's network http.port is the host's already, leave hostPort 0" -}}
{{- end -}}
{{- if and (gt (int .Values.http.hostPort) 0) (dig "rollingUpdate" "maxSurge" 0 .Values.updateStrategy) -}}
{{- fail "updateStrategy.rollingUpdate.maxSurge with http.hostPort: two pods can not have one host port; use maxUnavailable, or no hostPort" -}}
{{- end -}}
{{- if and .Values.metrics.podMonitor.enabled .Values.metrics.serviceMonitor.enabled -}}
{{- fail "metrics: podMonitor and serviceMonitor are both on, and each agent would be scraped twice; switch one on" -}}
{{- end -}}
{{- if and .Values.api.enabled (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount: create is false and name is empty; rights for everybody's 'default' account are not given. Name one" -}}
{{- end -}}
{{- end -}}
